"""The product of block-quantized weights with few tokens (matvec), built from a `FormatSpec`.

The kernel multiplies row by row, straight from the file; it is bound by memory bandwidth. `quant.matmul.panels` has the
kernel for many tokens. Threads divide the rows of the output but never a sum, so results do not depend on the number of
threads.
"""

from typing import Any

from numba import int64, uint8

from quant.jit.cpu import target
from quant.jit.threads import chunk_range
from quant.jit.vectors import inline, load, store
from quant.matmul.activations import count_superblocks
from quant.matmul.layout import flat_bytes
from quant.matmul.output_init import init_output
from quant.matmul.prefetching import DENSE_BITS, LONG_ROW, make_prefetch_superblock, no_prefetch
from quant.matmul.streams import make_stream_dispatch, skip_streams
from quant.matmul.token_sums import make_token_sums
from quant.packing.format_spec import FormatSpec, KernelBody, load_spec


def make_pad_row(spec: FormatSpec) -> Any:
    """Return the inlined function pad_row(row, row_bytes, out): copy a row shorter than a superblock to the end of a
    zeroed one.
    """
    superblock_bytes = spec.superblock_bytes

    @inline
    def pad_row(row: int, row_bytes: int, out: int) -> Any:
        missing_bytes = superblock_bytes - row_bytes
        for i in range(superblock_bytes):
            store(out + i, load(uint8, row + i - missing_bytes) if i >= missing_bytes else uint8(0))
        return out

    return pad_row


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


def matvec(format_module: str, passes: int) -> KernelBody:
    """Return the kernel y[token][row] = base[token][row] + w[row] . x[token] for flat tokens. `base` may be 0."""
    spec = load_spec(format_module)
    one, two, three, four = (make_dot_row(spec, passes, count) for count in (1, 2, 3, 4))
    pair, pairs = make_row_loop(spec, passes, 1, no_prefetch, two_rows=True), target().has_strong_prefetcher
    in_streams = make_stream_dispatch(spec, passes) if target().prefetches_per_page else skip_streams
    pad_row, superblock_bytes, token_bytes = make_pad_row(spec), spec.superblock_bytes, flat_bytes(256, passes)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        x, row_bytes, n_in, base = args.x, args.row_bytes, args.n_in, args.base
        y, y_stride = args.y, args.y_stride
        first, end = chunk_range(args.n_out, 8, chunk_index, n_chunks)
        count, x_stride = load(int64, args.tokens), count_superblocks(n_in) * token_bytes
        size = max(row_bytes, superblock_bytes)
        init_output(args, first, end)
        if pairs and count == 1 and superblock_bytes <= row_bytes and n_in < LONG_ROW:
            for number in range(first, end - 1, 2):
                pair(args.w + number * row_bytes, row_bytes, x, 0, n_in, y + 4 * number, 0, base)
            first = end - (end - first) % 2
        if superblock_bytes <= row_bytes:
            first = in_streams(args, count, x_stride, first, end, scratch)
        for number in range(first, end):
            row, out = args.w + number * row_bytes, y + 4 * number
            if row_bytes < superblock_bytes:
                row = pad_row(row, row_bytes, scratch)
            whole = count // 4 * 4
            for token in range(0, whole, 4):
                four(row, size, x + token * x_stride, x_stride, n_in, out + token * y_stride, y_stride, base)
            rest, remaining, out = x + whole * x_stride, count - whole, out + whole * y_stride
            if remaining == 3:
                three(row, size, rest, x_stride, n_in, out, y_stride, base)
            elif remaining == 2:
                two(row, size, rest, x_stride, n_in, out, y_stride, base)
            elif remaining:
                one(row, size, rest, x_stride, n_in, out, y_stride, base)

    return body
