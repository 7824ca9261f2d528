"""Kernels that read rows of block-quantized weights, built from a `FormatSpec`.

  get_rows   decodes rows to float32, e.g. token embeddings
  matvec     multiplies rows by few tokens, straight from the file; bound by memory bandwidth

`quant.matmul.panels` has the kernel for many tokens. Threads divide the rows of the output but never a sum, so results
do not depend on the number of threads.
"""

from functools import cache
from typing import Any

from numba import float32, int32, int64, uint8

from quant.jit.cpu import target
from quant.jit.threads import chunk_range
from quant.jit.vectors import (
    convert,
    extract,
    f32x8,
    f32x16,
    fma,
    i8x64,
    i32x16,
    inline,
    load,
    make_dot4,
    make_shuffle,
    prefetch_l1,
    prefetch_l2,
    reduce_sum,
    splat,
    store,
)
from quant.matmul.activations import count_superblocks
from quant.matmul.layout import ORDERS, flat_bytes
from quant.matmul.output_init import init_output
from quant.matmul.reductions import make_sums_of_eights, make_sums_of_fours, make_sums_of_two_vectors
from quant.packing.format_spec import FormatSpec, KernelBody, load_spec

# --- rows as floats -----------------------------------------------------------------------------------------------


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
    codes64, scales, mins, group = spec.codes64, spec.scales, spec.mins or spec.scales, spec.group_size
    codes32, scale1, group_min1 = spec.codes32, spec.group_scale, spec.group_min or spec.group_scale
    superblock_bytes = spec.superblock_bytes
    values = make_dequantize(spec)
    first, second, third, fourth = (make_shuffle(range(start, start + 16)) for start in range(0, 64, 16))

    @inline
    def store_values(codes: Any, scale: float, group_min: float, y: int, factor: float) -> None:
        store(y, values(codes, scale, group_min) * splat(f32x16, factor))

    @inline
    def superblock(block: int, y: int, factor: float) -> None:
        scale, group_min = scales(block), mins(block)
        for j in range(4):
            codes, place = codes64(block, j), y + 256 * j
            a, b, c, d = 64 * j // group, (64 * j + 16) // group, (64 * j + 32) // group, (64 * j + 48) // group
            store_values(first(codes), extract(scale, a), extract(group_min, a), place, factor)
            store_values(second(codes), extract(scale, b), extract(group_min, b), place + 64, factor)
            store_values(third(codes), extract(scale, c), extract(group_min, c), place + 128, factor)
            store_values(fourth(codes), extract(scale, d), extract(group_min, d), place + 192, factor)

    if codes32 is None:

        @inline
        def rest(row: int, start: int, n: int, y: int, factor: float) -> None:
            pass

    else:

        @inline
        def rest(row: int, start: int, n: int, y: int, factor: float) -> None:
            for k in range(start // 32, n // 32):
                codes, place, a, b = codes32(row, k), y + 128 * k, 32 * k // group, (32 * k + 16) // group
                store_values(first(codes), scale1(row, a), group_min1(row, a), place, factor)
                store_values(second(codes), scale1(row, b), group_min1(row, b), place + 64, factor)

    @inline
    def decode(row: int, n: int, y: int, factor: float) -> None:
        for block in range(n // 256):
            superblock(row + block * superblock_bytes, y + 1024 * block, factor)
        rest(row, n // 256 * 256, n, y, factor)

    return decode


def get_rows(format_module: str) -> KernelBody:
    """Return the kernel y[token] = factor * w[ids[token]]: float32 [token][n]."""
    decode = make_decode_row(load_spec(format_module))

    def body(args, chunk_index, n_chunks, scratch):
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for token in range(first, end):
            row = int64(load(int32, args.ids + 4 * token))
            decode(args.w + row * args.row_bytes, args.n, args.y + 4 * args.n * token, float32(args.factor))

    return body


# --- few tokens ---------------------------------------------------------------------------------------------------

# Prefetch distances in bytes. Hardware prefetchers stop at the end of a 4 KB page, and unpacking does too much work per
# byte to reach the next page early. One far line per superblock is enough for the prefetcher to open the next page; the
# other lines are prefetched at the near distance.
PREFETCH_NEAR, PREFETCH_FAR = 4096, 12288
# CPUs with a strong prefetcher need software prefetching only for long rows of formats that are costly to unpack: with
# 576 columns it made decoding slower by a quarter, and with 8 bits per weight it cost more than it gained.
LONG_ROW, DENSE_BITS = 2048, 8


# If the hardware prefetcher tracks each page separately, rows for one to three tokens are read as several streams far
# from each other, so that more memory requests are in flight. Lines are prefetched into the second-level cache only,
# because the first-level cache has few line fill buffers. Two threads of an Intel server read rows of Q4_K and Q6_K at
# 0.90 to 1.0 of the speed of a plain memory read, with one stream each at 0.82 to 0.88, and with two at 0.91 to 0.99.
N_STREAMS, STREAM_PREFETCH = 4, 2048


@inline
def no_prefetch(superblock: int) -> None:
    """Prefetch nothing."""


def make_prefetch_superblock(spec: FormatSpec) -> Any:
    """Return the inlined function prefetch(superblock), which prefetches the superblocks that follow at the near and
    far distances.
    """
    lines = -(-spec.superblock_bytes // 64)

    @inline
    def prefetch(superblock: int) -> None:
        prefetch_l2(superblock + PREFETCH_FAR)
        for line in range(lines):
            prefetch_l1(superblock + PREFETCH_NEAR + 64 * line)

    return prefetch


def make_dot(kind: Any, x_kind: Any, bits: int, passes: int) -> Any:
    """Return the inlined function dot(codes, x, n): products of codes and activations, four columns per lane.

    The activations of the two passes lie n bytes apart.
    """
    dot4_ = make_dot4(bits)

    @inline
    def once(codes: Any, x: int, n: int) -> Any:
        return dot4_(splat(kind, int32(0)), codes, load(x_kind, x))

    @inline
    def twice(codes: Any, x: int, n: int) -> Any:
        high = dot4_(splat(kind, int32(0)), codes, load(x_kind, x))
        return dot4_(high << splat(kind, int32(7)), codes, load(x_kind, x + n))

    return {1: once, 2: twice}[passes]


def make_dot128(bits: int, passes: int) -> Any:
    """Return the inlined function two_dots(a, b, x, n): products of 128 codes and activations, eight
    columns per lane.
    """
    dot4_ = make_dot4(bits)

    @inline
    def add(start: Any, a: Any, b: Any, x: int) -> Any:
        return dot4_(dot4_(start, a, load(i8x64, x)), b, load(i8x64, x + 64))

    @inline
    def once(a: Any, b: Any, x: int, n: int) -> Any:
        return add(splat(i32x16, int32(0)), a, b, x)

    @inline
    def twice(a: Any, b: Any, x: int, n: int) -> Any:
        high = add(splat(i32x16, int32(0)), a, b, x)
        return add(high << splat(i32x16, int32(7)), a, b, x + n)

    return {1: once, 2: twice}[passes]


# The location of the sum of each group of 16 columns, for each order of columns: the vector, and the quarter of it.
GROUP16_SOURCES = {
    "columns": [(group // 4, group % 4) for group in range(16)],
    "fours": [(group // 2 % 4, group // 8 * 2 + group % 2) for group in range(16)],
}


# The same for groups of 32, after the two halves of a group have been added.
GROUP32_SOURCES = {
    "halves": [(group // 4, group % 4) for group in range(8)],
    "evens": [(group % 2, group // 2) for group in range(8)],
}


def make_group_sums(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function sums(superblock, x, n): the exact dot product of each group's codes, one group per
    lane.
    """
    dot, ordered = make_dot(i32x16, i8x64, spec.bits, passes), spec.ordered_codes or spec.codes64
    two_dots = make_dot128(spec.bits, passes)
    peak = 4 * (2**spec.bits - 1) * 128 if passes == 1 else 1 << 31
    sixteen_sums = make_sums_of_fours(GROUP16_SOURCES[spec.order if spec.group_size == 16 else "columns"], peak)
    eight_sums, two_sums = (
        make_sums_of_eights(peak),
        make_sums_of_two_vectors(GROUP32_SOURCES.get(spec.order, []), 2 * peak),
    )
    from_columns = make_shuffle([0, 4, 1, 5, 2, 6, 3, 7])

    @inline
    def quarter(block: int, j: int, x: int, n: int) -> Any:
        return dot(ordered(block, j), x + 64 * j, n)

    @inline
    def sixteens(block: int, x: int, n: int) -> Any:
        a, b = quarter(block, 0, x, n), quarter(block, 1, x, n)
        return sixteen_sums(a, b, quarter(block, 2, x, n), quarter(block, 3, x, n))

    @inline
    def eights(block: int, x: int, n: int) -> Any:
        a, b = quarter(block, 0, x, n), quarter(block, 1, x, n)
        return eight_sums(a, b, quarter(block, 2, x, n), quarter(block, 3, x, n))

    @inline
    def columns(block: int, x: int, n: int) -> Any:
        return from_columns(eights(block, x, n))

    @inline
    def quarters(block: int, x: int, n: int) -> Any:
        first = two_dots(ordered(block, 0), ordered(block, 1), x, n)
        return two_sums(first, two_dots(ordered(block, 2), ordered(block, 3), x + 128, n))

    by_order = {"columns": columns, "halves": quarters, "evens": quarters, "fours": eights}
    return sixteens if spec.group_size == 16 else by_order[spec.order]


def make_pad_row(spec: FormatSpec) -> Any:
    """Return the inlined function pad_row(row, row_bytes, place): copy a row shorter than a superblock to the end of a
    zeroed one.
    """
    superblock_bytes = spec.superblock_bytes

    @inline
    def pad_row(row: int, row_bytes: int, place: int) -> Any:
        missing_bytes = superblock_bytes - row_bytes
        for i in range(superblock_bytes):
            store(place + i, load(uint8, row + i - missing_bytes) if i >= missing_bytes else uint8(0))
        return place

    return pad_row


def make_add_superblock(spec: FormatSpec) -> Any:
    """Return the inlined function superblock(at, products, x_scale, x_sums, x_totals, acc): add a superblock's groups
    to the sums.
    """
    scales, mins, kind, zero = spec.scales, spec.mins, spec.scales_type, spec.zero_point
    int_kind = kind.with_element(int32)

    @inline
    def with_zero(at: int, products: Any, x_scale: Any, x_sums: int, x_totals: int, acc: Any) -> Any:
        zero_products = load(int_kind, x_totals) * splat(int_kind, int32(zero))
        return fma(convert(kind, products - zero_products) * x_scale, scales(at), acc)

    @inline
    def with_mins(at: int, products: Any, x_scale: Any, x_sums: int, x_totals: int, acc: Any) -> Any:
        acc = fma(convert(kind, products) * x_scale, scales(at), acc)
        return fma(mins(at), load(kind, x_sums), acc)

    return with_zero if zero else with_mins


@cache
def make_add_token(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function add(row, block, x, n, acc): add the products of one superblock and the token at x to
    the sums.
    """
    sums, superblock = make_group_sums(spec, passes), make_add_superblock(spec)
    groups, bytes_, order_at = spec.n_groups, len(ORDERS) * passes, passes * ORDERS.index(spec.order)
    for_group = make_shuffle([lane * 8 // groups for lane in range(groups)])

    @inline
    def add(at: int, block: int, x: int, columns: int, acc: Any) -> Any:
        numbers, ahead = x + bytes_ * columns, 4 * groups * block
        x_sums = numbers + (columns // 8 if groups == 8 else columns // 4)
        x_totals = numbers + (columns // 2 if groups == 8 else 5 * (columns // 8))
        x_scale, x_at = for_group(load(f32x8, numbers + 32 * block)), x + order_at * columns + 256 * block
        return superblock(at, sums(at, x_at, columns), x_scale, x_sums + ahead, x_totals + ahead, acc)

    return add


@cache
def make_token_sums(spec: FormatSpec, passes: int, count: int) -> tuple[Any, Any, Any]:
    """Return three inlined functions for `count` tokens, whose sums are a tuple of vectors.

    start() returns zeros, add(at, block, x, x_stride, columns, sums) adds a superblock, and deliver(sums, y, y_stride,
    add) stores or adds the total of each token.
    """
    kind, add_one = spec.scales_type, make_add_token(spec, passes)

    @inline
    def start() -> Any:
        return (splat(kind, float32(0.0)),)

    @inline
    def add(at: int, block: int, x: int, x_stride: int, columns: int, sums: Any) -> Any:
        return (add_one(at, block, x, columns, sums[0]),)

    @inline
    def store_totals(sums: Any, y: int, y_stride: int, add: int) -> None:
        result = reduce_sum(sums[0])
        store(y, result + load(float32, y) if add else result)

    if count == 1:
        return start, add, store_totals
    start_others, add_others, store_other_totals = make_token_sums(spec, passes, count - 1)

    @inline
    def start_all() -> Any:
        return start() + start_others()

    @inline
    def add_all(at: int, block: int, x: int, x_stride: int, columns: int, sums: Any) -> Any:
        others = add_others(at, block, x + x_stride, x_stride, columns, sums[1:])
        return add(at, block, x, x_stride, columns, sums) + others

    @inline
    def store_all_totals(sums: Any, y: int, y_stride: int, add: int) -> None:
        store_totals(sums, y, y_stride, add)
        store_other_totals(sums[1:], y + y_stride, y_stride, add)

    return start_all, add_all, store_all_totals


def make_row_loop(spec: FormatSpec, passes: int, count: int, prefetch: Any, *, two_rows: bool = False) -> Any:
    """Return the inlined function `dots` of `make_dot_row` with the given prefetch function.

    With `two_rows`, it also computes the next row in the same loop: the two dependency chains overlap, and activations
    are read once.
    """
    start, add, store_totals = make_token_sums(spec, passes, count)
    superblock_bytes = spec.superblock_bytes

    @inline
    def dots(row: int, row_bytes: int, x: int, x_stride: int, n: int, y: int, y_stride: int, add_to: int) -> None:
        columns, last = 256 * count_superblocks(n), row + row_bytes - superblock_bytes
        sums, next_sums = start(), start()
        for block in range(columns // 256):
            at = min(row + block * superblock_bytes, last)
            prefetch(at)
            sums = add(at, block, x, x_stride, columns, sums)
            if two_rows:
                next_sums = add(at + row_bytes, block, x, x_stride, columns, next_sums)
        store_totals(sums, y, y_stride, add_to)
        if two_rows:
            store_totals(next_sums, y + 4, y_stride, add_to)

    return dots


def make_dot_row(spec: FormatSpec, passes: int, count: int) -> Any:
    """Return the inlined function dots(row, row_bytes, x, x_stride, n, y, y_stride, add): one row times `count` flat
    tokens.

    The row has at least a superblock. Results are stored to, or added to, y[token]. A superblock's codes are unpacked
    once for all tokens.

    Each position of a group in a superblock has its own sum: a lane here, a pass in `quant.matmul.tile`. Both add them
    in the same order, so a token's result is the same to the last bit alone and in a batch.
    """
    without_prefetch, with_prefetch = (
        make_row_loop(spec, passes, count, fetch) for fetch in (no_prefetch, make_prefetch_superblock(spec))
    )
    if not target().has_strong_prefetcher:
        return with_prefetch
    if 8 * spec.superblock_bytes >= 256 * DENSE_BITS:
        return without_prefetch

    @inline
    def dots(row: int, row_bytes: int, x: int, x_stride: int, n: int, y: int, y_stride: int, add: int) -> None:
        if n >= LONG_ROW:
            with_prefetch(row, row_bytes, x, x_stride, n, y, y_stride, add)
        else:
            without_prefetch(row, row_bytes, x, x_stride, n, y, y_stride, add)

    return dots


@cache
def make_spill_sums(kind: Any, count: int) -> tuple[Any, Any]:
    """Return two inlined functions that store the sums of `count` tokens to memory and load them: keep(sums, place),
    kept(place).
    """
    size = 4 * kind.lanes

    @inline
    def spill(sums: Any, place: int) -> None:
        store(place, sums[0])

    @inline
    def reload(place: int) -> Any:
        return (load(kind, place),)

    if count == 1:
        return spill, reload
    spill_others, reload_others = make_spill_sums(kind, count - 1)

    @inline
    def spill_all(sums: Any, place: int) -> None:
        spill(sums, place)
        spill_others(sums[1:], place + size)

    @inline
    def reload_all(place: int) -> Any:
        return reload(place) + reload_others(place + size)

    return spill_all, reload_all


def make_stream_rows(spec: FormatSpec, passes: int, count: int) -> Any:
    """Return the inlined function streams(first, end, w, row_bytes, x, x_stride, n, y, y_stride, add, sums).

    It multiplies rows by `count` flat tokens in N_STREAMS streams, each a contiguous range of rows, and stores or adds
    the results to y[token]. It returns the first of the remaining rows, fewer than N_STREAMS. Rows have at least a
    superblock. `sums` is the address of memory for the sums of all streams.
    """
    start, add, store_totals = make_token_sums(spec, passes, count)
    spill, reload = make_spill_sums(spec.scales_type, count)
    superblock_bytes, sums_bytes = spec.superblock_bytes, 4 * spec.n_groups * count
    lines = -(-superblock_bytes // 64)

    @inline
    def dots(
        row: int, row_bytes: int, stream_stride: int, x: int, x_stride: int, n: int, y: int, y_stream_stride: int,
        y_stride: int, add_to: int, sums: int,
    ) -> None:  # fmt: skip
        columns, last = 256 * count_superblocks(n), row + row_bytes - superblock_bytes
        for stream in range(N_STREAMS):
            spill(start(), sums + sums_bytes * stream)
        for block in range(columns // 256):
            first = min(row + block * superblock_bytes, last)
            for stream in range(N_STREAMS):
                at, place = first + stream_stride * stream, sums + sums_bytes * stream
                for line in range(lines):
                    prefetch_l2(at + STREAM_PREFETCH + 64 * line)
                spill(add(at, block, x, x_stride, columns, reload(place)), place)
        for stream in range(N_STREAMS):
            store_totals(reload(sums + sums_bytes * stream), y + y_stream_stride * stream, y_stride, add_to)

    @inline
    def streams(
        first: int, end: int, w: int, row_bytes: int, x: int, x_stride: int, n: int, y: int, y_stride: int, add: int,
        sums: int,
    ) -> Any:  # fmt: skip
        stream_rows = (end - first) // N_STREAMS
        stream_stride, y_stream_stride = stream_rows * row_bytes, 4 * stream_rows
        for stream in range(N_STREAMS):
            for ahead in range(0, STREAM_PREFETCH, 64):
                prefetch_l2(w + first * row_bytes + stream_stride * stream + ahead)
        for number in range(first, first + stream_rows):
            row, place = w + number * row_bytes, y + 4 * number
            dots(row, row_bytes, stream_stride, x, x_stride, n, place, y_stream_stride, y_stride, add, sums)
        return first + N_STREAMS * stream_rows

    return streams


def make_stream_dispatch(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function in_streams(count, first, ...), which runs the streams for one to three tokens, and
    does nothing for more.
    """
    one, two, three = (make_stream_rows(spec, passes, count) for count in (1, 2, 3))

    @inline
    def in_streams(
        count: int, first: int, end: int, w: int, row_bytes: int, x: int, x_stride: int, n: int, y: int, y_stride: int,
        add: int, sums: int,
    ) -> Any:  # fmt: skip
        if count == 1:
            first = one(first, end, w, row_bytes, x, x_stride, n, y, y_stride, add, sums)
        elif count == 2:
            first = two(first, end, w, row_bytes, x, x_stride, n, y, y_stride, add, sums)
        elif count == 3:
            first = three(first, end, w, row_bytes, x, x_stride, n, y, y_stride, add, sums)
        return first

    return in_streams


@inline
def skip_streams(
    count: int, first: int, end: int, w: int, row_bytes: int, x: int, x_stride: int, n: int, y: int, y_stride: int,
    add: int, sums: int,
) -> Any:  # fmt: skip
    """Leave all rows to the caller: on CPUs whose prefetchers gain nothing from several streams of rows."""
    return first


def matvec(format_module: str, passes: int) -> KernelBody:
    """Return the kernel y[token][row] = base[token][row] + w[row] . x[token] for flat tokens. `base` may be 0."""
    spec = load_spec(format_module)
    one, two, three, four = (make_dot_row(spec, passes, count) for count in (1, 2, 3, 4))
    pair, pairs = make_row_loop(spec, passes, 1, no_prefetch, two_rows=True), target().has_strong_prefetcher
    in_streams = make_stream_dispatch(spec, passes) if target().prefetches_per_page else skip_streams
    pad_row, superblock_bytes, token_bytes = make_pad_row(spec), spec.superblock_bytes, flat_bytes(256, passes)

    def body(args, chunk_index, n_chunks, scratch):
        x, row_bytes, n_in, base = args.x, args.row_bytes, args.n_in, args.base
        y, y_stride = args.y, args.y_stride
        first, end = chunk_range(args.n_out, 8, chunk_index, n_chunks)
        count, x_stride = load(int64, args.tokens), count_superblocks(n_in) * token_bytes
        size = max(row_bytes, superblock_bytes)
        init_output(base, args.base_stride, y, y_stride, count, first, end)
        if pairs and count == 1 and superblock_bytes <= row_bytes and n_in < LONG_ROW:
            for number in range(first, end - 1, 2):
                pair(args.w + number * row_bytes, row_bytes, x, 0, n_in, y + 4 * number, 0, base)
            first = end - (end - first) % 2
        if superblock_bytes <= row_bytes:
            first = in_streams(count, first, end, args.w, row_bytes, x, x_stride, n_in, y, y_stride, base, scratch)
        for number in range(first, end):
            row, place = args.w + number * row_bytes, y + 4 * number
            if row_bytes < superblock_bytes:
                row = pad_row(row, row_bytes, scratch)
            fours = count // 4 * 4
            for token in range(0, fours, 4):
                four(row, size, x + token * x_stride, x_stride, n_in, place + token * y_stride, y_stride, base)
            rest, left, place = x + fours * x_stride, count - fours, place + fours * y_stride
            if left == 3:
                three(row, size, rest, x_stride, n_in, place, y_stride, base)
            elif left == 2:
                two(row, size, rest, x_stride, n_in, place, y_stride, base)
            elif left:
                one(row, size, rest, x_stride, n_in, place, y_stride, base)

    return body
