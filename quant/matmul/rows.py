"""The product of block-quantized weights with few tokens (matvec), built from a `FormatSpec`.

The kernel multiplies rows straight from the file; it is bound by memory bandwidth, so the order in which it reads them
is tuned for the CPU (`quant.matmul.row_access`). `quant.matmul.panels` has the kernel for many tokens. Threads divide
the rows of the output but never a sum, so results do not depend on the number of threads.
"""

from typing import Any

from numba import int64, uint8

from quant.jit.threads import chunk_range
from quant.jit.vectors import inline, load, store
from quant.matmul.activations import count_superblocks
from quant.matmul.layout import flat_bytes
from quant.matmul.load_access import load_access
from quant.matmul.output_init import init_output
from quant.matmul.prefetching import make_prefetch_superblock
from quant.matmul.streams import make_read_streams
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


def make_dot_rows(spec: FormatSpec, passes: int, count: int, *, two_rows: bool = False) -> Any:
    """Return the inlined function dots(row, args, x, x_stride, y, prefetch): one row times `count` flat tokens.

    `row` is the address of the row, of at least a superblock; `args` are `ProductArguments`. The results are stored to,
    or added to, y[token]. The bytes at the distance `prefetch` are prefetched, unless it is 0. A superblock's codes are
    unpacked once for all tokens. With `two_rows`, the next row is computed in the same loop: the two dependency chains
    overlap, and activations are read once.

    Each position of a group in a superblock has its own sum: a lane here, a pass in `quant.matmul.tile`. Both add them
    in the same order, so a token's result is the same to the last bit alone and in a batch.
    """
    start, add, store_totals = make_token_sums(spec, passes, count)
    superblock_bytes, prefetch_superblock = spec.superblock_bytes, make_prefetch_superblock(spec)

    @inline
    def dots(row: int, args: Any, x: int, x_stride: int, y: int, prefetch: int) -> None:
        row_bytes = max(args.row_bytes, superblock_bytes)
        columns, last = 256 * count_superblocks(args.n_in), row + row_bytes - superblock_bytes
        sums, next_sums = start(), start()
        for block in range(columns // 256):
            at = min(row + block * superblock_bytes, last)
            if prefetch:
                prefetch_superblock(at, prefetch)
            sums = add(at, block, x, x_stride, columns, sums)
            if two_rows:
                next_sums = add(at + row_bytes, block, x, x_stride, columns, next_sums)
        store_totals(sums, y, args.y_stride, args.base)
        if two_rows:
            store_totals(next_sums, y + 4, args.y_stride, args.base)

    return dots


def matvec(format_module: str, passes: int) -> KernelBody:
    """Return the kernel y[token][row] = base[token][row] + w[row] . x[token] for flat tokens. `base` may be 0."""
    spec = load_spec(format_module)
    one, two, three, four = (make_dot_rows(spec, passes, count) for count in (1, 2, 3, 4))
    pair, read_streams = make_dot_rows(spec, passes, 1, two_rows=True), make_read_streams(spec, passes)
    pad_row, superblock_bytes, token_bytes = make_pad_row(spec), spec.superblock_bytes, flat_bytes(256, passes)

    @inline
    def multiply_row(row: int, args: Any, count: int, x_stride: int, out: int, prefetch: int) -> None:
        """Multiply one row by all tokens, up to four at a time."""
        whole = count // 4 * 4
        for token in range(0, whole, 4):
            four(row, args, args.x + token * x_stride, x_stride, out + token * args.y_stride, prefetch)
        rest, remaining, out = args.x + whole * x_stride, count - whole, out + whole * args.y_stride
        if remaining == 3:
            three(row, args, rest, x_stride, out, prefetch)
        elif remaining == 2:
            two(row, args, rest, x_stride, out, prefetch)
        elif remaining:
            one(row, args, rest, x_stride, out, prefetch)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(args.n_out, 8, chunk_index, n_chunks)
        count, x_stride = load(int64, args.tokens), count_superblocks(args.n_in) * token_bytes
        is_short, access = args.row_bytes < superblock_bytes, load_access(args.access)
        init_output(args, first, end)
        if access.streams > 1 and not is_short:
            first = read_streams(args, access.streams, access.prefetch, count, x_stride, first, end, scratch)
        elif access.rows == 2 and count == 1 and not is_short:
            for number in range(first, end - 1, 2):
                row = args.w + number * args.row_bytes
                pair(row, args, args.x, 0, args.y + 4 * number, access.prefetch)
            first = end - (end - first) % 2
        for number in range(first, end):
            row = args.w + number * args.row_bytes
            if is_short:
                row = pad_row(row, args.row_bytes, scratch)
            multiply_row(row, args, count, x_stride, args.y + 4 * number, access.prefetch)

    return body
