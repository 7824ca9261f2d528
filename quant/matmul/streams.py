"""Products of rows that are read as several streams, so that more memory requests are in flight.

Some hardware prefetchers track each memory page separately. If they read several pages in turns, they have more
requests in flight.
"""

from functools import cache
from typing import Any, NamedTuple

from quant.jit.vectors import inline, load, prefetch_l2, store
from quant.matmul.activations import count_superblocks
from quant.matmul.token_sums import make_token_sums
from quant.packing.format_spec import FormatSpec


class Streams(NamedTuple):
    """The number of streams, the distance in bytes of prefetching, and the bytes between two streams in the weights and
    in the output."""

    n_streams: int
    prefetch: int
    stride: int
    y_stride: int


@cache
def make_spill_sums(kind: Any, count: int) -> tuple[Any, Any]:
    """Return two inlined functions that store the sums of `count` tokens to memory and load them: spill(sums,
    address), reload(address).
    """
    size = 4 * kind.lanes

    @inline
    def spill(sums: Any, address: int) -> None:
        store(address, sums[0])

    @inline
    def reload(address: int) -> Any:
        return (load(kind, address),)

    if count == 1:
        return spill, reload
    spill_others, reload_others = make_spill_sums(kind, count - 1)

    @inline
    def spill_all(sums: Any, address: int) -> None:
        spill(sums, address)
        spill_others(sums[1:], address + size)

    @inline
    def reload_all(address: int) -> Any:
        return reload(address) + reload_others(address + size)

    return spill_all, reload_all


def make_stream_rows(spec: FormatSpec, passes: int, count: int) -> Any:
    """Return the inlined function stream_rows(args, n_streams, prefetch, x_stride, first, end, sums).

    It multiplies the rows first .. end - 1 of a `ProductArguments` by `count` flat tokens in several streams, each a
    contiguous range of rows. It returns the first of the remaining rows, fewer than `n_streams`. Rows have at least a
    superblock, tokens are x_stride bytes apart. `sums` is the address of memory for the sums of all streams.

    The bytes at the distance `prefetch` are prefetched into the second-level cache only, because the first-level cache
    has few line fill buffers.
    """
    start, add, store_totals = make_token_sums(spec, passes, count)
    spill, reload = make_spill_sums(spec.scales_type, count)
    superblock_bytes, sums_bytes = spec.superblock_bytes, 4 * spec.n_groups * count
    lines = -(-superblock_bytes // 64)

    @inline
    def dots(args: Any, streams: Streams, x_stride: int, row: int, y: int, sums: int) -> None:
        """Multiply a row of each stream: `row` and `y` are the addresses for the first stream."""
        columns, last = 256 * count_superblocks(args.n_in), row + args.row_bytes - superblock_bytes
        for stream in range(streams.n_streams):
            spill(start(), sums + sums_bytes * stream)
        for block in range(columns // 256):
            first = min(row + block * superblock_bytes, last)
            for stream in range(streams.n_streams):
                at, stream_sums = first + streams.stride * stream, sums + sums_bytes * stream
                for line in range(lines):
                    prefetch_l2(at + streams.prefetch + 64 * line)
                spill(add(at, block, args.x, x_stride, columns, reload(stream_sums)), stream_sums)
        for stream in range(streams.n_streams):
            store_totals(reload(sums + sums_bytes * stream), y + streams.y_stride * stream, args.y_stride, args.base)

    @inline
    def stream_rows(args: Any, n_streams: int, prefetch: int, x_stride: int, first: int, end: int, sums: int) -> Any:
        n_rows = (end - first) // n_streams
        streams = Streams(n_streams, prefetch, n_rows * args.row_bytes, 4 * n_rows)
        for stream in range(n_streams):
            for ahead in range(0, prefetch, 64):
                prefetch_l2(args.w + first * args.row_bytes + streams.stride * stream + ahead)
        for number in range(first, first + n_rows):
            dots(args, streams, x_stride, args.w + number * args.row_bytes, args.y + 4 * number, sums)
        return first + n_streams * n_rows

    return stream_rows


def make_read_streams(spec: FormatSpec, passes: int) -> Any:
    """Return the inlined function read_streams(args, n_streams, prefetch, count, x_stride, first, end, sums).

    It calls `stream_rows` for one to three tokens, and leaves all rows to the caller for more.
    """
    one, two, three = (make_stream_rows(spec, passes, count) for count in (1, 2, 3))

    @inline
    def read_streams(
        args: Any, n_streams: int, prefetch: int, count: int, x_stride: int, first: int, end: int, sums: int
    ) -> Any:
        if count == 1:
            first = one(args, n_streams, prefetch, x_stride, first, end, sums)
        elif count == 2:
            first = two(args, n_streams, prefetch, x_stride, first, end, sums)
        elif count == 3:
            first = three(args, n_streams, prefetch, x_stride, first, end, sums)
        return first

    return read_streams
