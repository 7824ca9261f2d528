"""How matvec kernels read the rows of a matrix: the tuning choices that change their speed, but not a bit of a result.

A matvec kernel is bound by memory bandwidth. How rows have to be read so that enough memory requests are in flight
depends on the CPU, the block format and the length of a row, so `localinfer.runtime.row_access` measures the candidates
on the user's machine. A kernel reads its choice from memory at each call: to change it, nothing is compiled again.

This module does not import numba.
"""

from typing import NamedTuple


class RowAccess(NamedTuple):
    """A way to read the rows of a chunk: three int64 numbers, which kernels read from the address `access`.

    `streams` rows are read in turns, a superblock of each (1: row by row). They belong to as many contiguous ranges of
    rows, or they are neighbours, which are prefetched in the order of memory. `prefetch` is the distance in bytes of
    software prefetching, or 0 for none.
    """

    streams: int
    prefetch: int
    neighbours: bool = False

    def __str__(self) -> str:
        several = f"{self.streams} {'neighbouring rows' if self.neighbours else 'streams'}"
        order = several if self.streams > 1 else "row by row"
        return f"{order}, prefetch {self.prefetch} bytes ahead" if self.prefetch else f"{order}, no prefetch"


ROW_ACCESS_WORDS = len(RowAccess._fields)
# A `RowAccess`, and then 1 if register tiles subtract MAGIC: see `quant.matmul.layout.has_two_conversions`.
PRODUCT_CHOICE_WORDS = ROW_ACCESS_WORDS + 1

FOUR_STREAMS = RowAccess(4, 2048)
CANDIDATES = (
    RowAccess(1, 0),
    RowAccess(1, 8192),
    RowAccess(2, 8192, neighbours=True),
    RowAccess(4, 8192, neighbours=True),
    RowAccess(4, 16384, neighbours=True),
    RowAccess(2, 4096),
    RowAccess(2, 6144),
    FOUR_STREAMS,
    RowAccess(8, 1024),
)


def default_row_access() -> RowAccess:
    """Return the choice for a machine that has not been measured.

    Four streams were the fastest on an Intel Xeon. On Zen 5, two streams are up to a third faster. NEON kernels
    multiply two rows at a time, which takes at least two streams.
    """
    return FOUR_STREAMS
