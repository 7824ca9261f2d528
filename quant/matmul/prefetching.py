"""Software prefetching of the rows that a kernel reads in sequence."""

from typing import Any

from quant.jit.vectors import inline, prefetch_l1, prefetch_l2
from quant.packing.format_spec import FormatSpec


def make_prefetch_superblock(spec: FormatSpec) -> Any:
    """Return the inlined function prefetch(superblock, distance), which prefetches a superblock `distance` bytes ahead,
    and one line three times as far.

    Hardware prefetchers stop at the end of a 4 KB page, and unpacking does too much work per byte to reach the next
    page early. One far line for each superblock is enough for the prefetcher to open the next page.
    """
    lines = -(-spec.superblock_bytes // 64)

    @inline
    def prefetch(superblock: int, distance: int) -> None:
        prefetch_l2(superblock + 3 * distance)
        for line in range(lines):
            prefetch_l1(superblock + distance + 64 * line)

    return prefetch
