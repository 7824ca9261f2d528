"""The product of block-quantized weights with few tokens (matvec), built from a `FormatSpec`.

The kernel multiplies rows straight from the file; it is bound by memory bandwidth, so the order in which it reads them
is tuned for the CPU (`quant.matmul.row_access`). Some hardware prefetchers track each memory page separately: if rows
are read as several streams, from several pages in turns, more memory requests are in flight.

`quant.matmul.panels` has the kernel for many tokens. Threads divide the rows of the output but never a sum, so results
do not depend on the number of threads.
"""

from typing import Any, NamedTuple

from numba import int64, uint8

from quant.jit.cpu import target
from quant.jit.threads import chunk_range
from quant.jit.vectors import inline, load, prefetch_l2, store
from quant.matmul.activations import count_superblocks
from quant.matmul.layout import flat_bytes
from quant.matmul.load_access import load_access
from quant.matmul.output_init import init_output
from quant.matmul.token_sums import make_token_sums
from quant.packing.format_spec import FormatSpec, KernelBody, load_spec

MAX_STREAMS = 16
SUMS_BYTES = 4 * 4 * 16 * MAX_STREAMS  # scratch bytes for the sums of four tokens, of 16 floats each


class Streams(NamedTuple):
    """Rows that are read in turns, a superblock of each.

    Strides are the bytes between two rows: in the weights, in the output, and in what is prefetched. `prefetch` is the
    distance to what the first superblock prefetches, and `prefetch_step` the bytes from there to what the next
    superblock of the row does.
    """

    n_streams: int
    stride: int
    y_stride: int
    prefetch: int
    prefetch_stride: int
    prefetch_step: int


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


def make_add_streams(spec: FormatSpec, add: Any, add_two: Any, count: int) -> tuple[Any, Any]:
    """Return the inlined functions one_by_one and in_pairs, with the arguments (first, ahead, block, streams, x,
    x_stride, columns, sums): add superblock number `block` of each stream's row to its sums.

    `first` is the address of the first stream's superblock, and `ahead` of what is prefetched for it. `in_pairs`
    multiplies a token by the rows of two streams at a time, and needs an even number of them.
    """
    lines, sums_bytes = -(-spec.superblock_bytes // 64), 4 * spec.n_groups * count

    @inline
    def prefetch(at: int) -> None:
        for line in range(lines):  # also at distance 0, where a test would cost more than the prefetches
            prefetch_l2(at + 64 * line)

    @inline
    def one_by_one(
        first: int, ahead: int, block: int, streams: Streams, x: int, x_stride: int, columns: int, sums: int
    ) -> None:
        for stream in range(streams.n_streams):
            prefetch(ahead + streams.prefetch_stride * stream)
            add(first + streams.stride * stream, block, x, x_stride, columns, sums + sums_bytes * stream)

    @inline
    def in_pairs(
        first: int, ahead: int, block: int, streams: Streams, x: int, x_stride: int, columns: int, sums: int
    ) -> None:
        for stream in range(0, streams.n_streams, 2):
            at = first + streams.stride * stream
            prefetch(ahead + streams.prefetch_stride * stream)
            prefetch(ahead + streams.prefetch_stride * (stream + 1))
            add_two(at, at + streams.stride, block, x, x_stride, columns, sums + sums_bytes * stream)

    return one_by_one, in_pairs


def make_dot_rows(spec: FormatSpec, passes: int, count: int) -> Any:
    """Return the inlined function dots(row, streams, args, x, x_stride, y, sums): a row of each stream times `count`
    flat tokens.

    `row` is the address of the superblocks of the first stream's row, at least one, and `y` that of its first result;
    `args` are `ProductArguments`, and `sums` is memory for SUMS_BYTES. A superblock's codes are unpacked once for all
    tokens.
    Bytes are prefetched into the second-level cache only, because the first-level cache has few line fill buffers.

    Each position of a group in a superblock has its own sum: a lane here, a pass in `quant.matmul.tile`. Both add them
    in the same order, so a token's result is the same to the last bit alone and in a batch.
    """
    clear, add, add_two, store_totals = make_token_sums(spec, passes, count)
    one_by_one, in_pairs = make_add_streams(spec, add, add_two, count)
    superblock_bytes, sums_bytes, header = spec.superblock_bytes, 4 * spec.n_groups * count, spec.header_bytes
    has_pairs = count == 1 and target().multiplies_row_pairs

    @inline
    def dots(row: int, streams: Streams, args: Any, x: int, x_stride: int, y: int, sums: int) -> None:
        columns, row_bytes = 256 * count_superblocks(args.n_in), max(args.row_bytes - header, superblock_bytes)
        for stream in range(streams.n_streams):
            clear(sums + sums_bytes * stream)
        blocks, last, ahead = columns // 256, row + row_bytes - superblock_bytes, row + streams.prefetch
        if has_pairs and streams.n_streams % 2 == 0:  # loops of their own: a test within would take time
            for block in range(blocks):
                at, next_at = min(row + block * superblock_bytes, last), ahead + block * streams.prefetch_step
                in_pairs(at, next_at, block, streams, x, x_stride, columns, sums)
        else:
            for block in range(blocks):
                at, next_at = min(row + block * superblock_bytes, last), ahead + block * streams.prefetch_step
                one_by_one(at, next_at, block, streams, x, x_stride, columns, sums)
        for stream in range(streams.n_streams):
            store_totals(sums + sums_bytes * stream, y + streams.y_stride * stream, args.y_stride, args.base)

    return dots


def make_multiply_rows(spec: FormatSpec, passes: int, count: int) -> Any:
    """Return the inlined function multiply_rows(args, first, end, x, y, scratch): the rows first .. end - 1 times
    `count` flat tokens.

    `args` are `ProductArguments`, `x` is the address of the first token and `y` that of its results.
    """
    dots, pad_row = make_dot_rows(spec, passes, count), make_pad_row(spec)
    superblock_bytes, token_bytes, header = spec.superblock_bytes, flat_bytes(256, passes), spec.header_bytes

    @inline
    def multiply_rows(args: Any, first: int, end: int, x: int, y: int, scratch: int) -> None:
        access, row_bytes, is_short = load_access(args.access), args.row_bytes, args.row_bytes < superblock_bytes
        x_stride, n_streams = count_superblocks(args.n_in) * token_bytes, 1 if is_short else access.streams
        n_rows = (end - first) // n_streams  # of each stream
        streams_end = first + n_streams * n_rows
        spacing, step = (1, n_streams) if access.neighbours else (n_rows, 1)  # between streams, and between their rows
        for stream in range(n_streams):
            for ahead in range(0, access.prefetch, 64):
                prefetch_l2(args.w + (first + stream * spacing) * row_bytes + ahead)
        for turn in range(n_rows + end - streams_end):
            is_last = turn >= n_rows  # the rows that remain, fewer than streams, are read one by one
            number = streams_end + turn - n_rows if is_last else first + turn * step
            streams = Streams(
                n_streams=1 if is_last else n_streams,
                stride=spacing * row_bytes,
                y_stride=4 * spacing,
                prefetch=access.prefetch,
                prefetch_stride=superblock_bytes if access.neighbours else spacing * row_bytes,
                prefetch_step=superblock_bytes * step,
            )
            row = args.w + header + number * row_bytes
            if is_short:
                row = pad_row(row, row_bytes, scratch + SUMS_BYTES)
            dots(row, streams, args, x, x_stride, y + 4 * number, scratch)

    return multiply_rows


def matvec(format_module: str, passes: int) -> KernelBody:
    """Return the kernel y[token][row] = base[token][row] + w[row] . x[token] for flat tokens. `base` may be 0."""
    spec, token_bytes = load_spec(format_module), flat_bytes(256, passes)
    one, two, three, four = (make_multiply_rows(spec, passes, count) for count in (1, 2, 3, 4))

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(args.n_out, 8, chunk_index, n_chunks)
        count, x_stride = load(int64, args.tokens), count_superblocks(args.n_in) * token_bytes
        whole = count // 4 * 4
        x, y = args.x + whole * x_stride, args.y + whole * args.y_stride  # of the tokens that remain
        init_output(args, first, end, 0, count)
        for token in range(0, whole, 4):
            four(args, first, end, args.x + token * x_stride, args.y + token * args.y_stride, scratch)
        if count - whole == 3:
            three(args, first, end, x, y, scratch)
        elif count - whole == 2:
            two(args, first, end, x, y, scratch)
        elif count > whole:
            one(args, first, end, x, y, scratch)

    return body
