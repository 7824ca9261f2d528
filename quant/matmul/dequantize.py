"""The kernel that decodes rows of block-quantized weights to float32, e.g. token embeddings."""

from typing import Any

from numba import float32, int32, int64

from quant.jit.threads import chunk_range
from quant.jit.vectors import convert, extract, f32x16, fma, inline, load, make_shuffle, splat, store
from quant.packing.format_spec import FormatSpec, KernelBody, load_spec, make_scales


def make_dequantize(spec: FormatSpec) -> Any:
    """Return the inlined function values(codes, scale, least): sixteen weights of a group, with ggml's rounding."""
    zero = float32(spec.zero_point)

    @inline
    def from_zero(codes: Any, scale: float, group_min: float) -> Any:
        return splat(f32x16, scale) * (convert(f32x16, codes) - splat(f32x16, zero))

    @inline
    def from_min(codes: Any, scale: float, group_min: float) -> Any:
        return fma(convert(f32x16, codes), splat(f32x16, scale), splat(f32x16, group_min))

    return from_zero if spec.zero_point else from_min


def make_decode_row(spec: FormatSpec) -> Any:
    """Return the inlined function decode(row, n, y, factor): decode n weights to float32, exactly as ggml defines them,
    times a factor.
    """
    codes64, scales, mins, group = spec.codes64, make_scales(spec), spec.mins or spec.scales, spec.group_size
    codes32, scale1, group_min1 = spec.codes32, spec.group_scale, spec.group_min or spec.group_scale
    superblock_bytes, header_bytes = spec.superblock_bytes, spec.header_bytes
    values = make_dequantize(spec)
    first, second, third, fourth = (make_shuffle(range(start, start + 16)) for start in range(0, 64, 16))

    @inline
    def store_values(codes: Any, scale: float, group_min: float, y: int, factor: float) -> None:
        store(y, values(codes, scale, group_min) * splat(f32x16, factor))

    @inline
    def superblock(block: int, number: int, y: int, factor: float) -> None:
        scale, group_min = scales(block, number), mins(block)
        for j in range(4):
            codes, out = codes64(block, j), y + 256 * j
            a, b, c, d = 64 * j // group, (64 * j + 16) // group, (64 * j + 32) // group, (64 * j + 48) // group
            store_values(first(codes), extract(scale, a), extract(group_min, a), out, factor)
            store_values(second(codes), extract(scale, b), extract(group_min, b), out + 64, factor)
            store_values(third(codes), extract(scale, c), extract(group_min, c), out + 128, factor)
            store_values(fourth(codes), extract(scale, d), extract(group_min, d), out + 192, factor)

    if codes32 is None:

        @inline
        def rest(row: int, start: int, n: int, y: int, factor: float) -> None:
            pass

    else:

        @inline
        def rest(row: int, start: int, n: int, y: int, factor: float) -> None:
            for k in range(start // 32, n // 32):
                codes, out, a, b = codes32(row, k), y + 128 * k, 32 * k // group, (32 * k + 16) // group
                store_values(first(codes), scale1(row, a), group_min1(row, a), out, factor)
                store_values(second(codes), scale1(row, b), group_min1(row, b), out + 64, factor)

    @inline
    def decode(row: int, n: int, y: int, factor: float) -> None:
        for number in range(n // 256):
            superblock(row + header_bytes + number * superblock_bytes, number, y + 1024 * number, factor)
        rest(row, n // 256 * 256, n, y, factor)

    return decode


def get_rows(format_module: str) -> KernelBody:
    """Return the kernel y[row] = factor * w[ids[row]]: float32 [token][per_token][n]."""
    decode = make_decode_row(load_spec(format_module))

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens) * args.per_token, 1, chunk_index, n_chunks)
        for number in range(first, end):
            row = int64(load(int32, args.ids + 4 * number))
            decode(args.w + row * args.row_bytes, args.n, args.y + 4 * args.n * number, float32(args.factor))

    return body
