"""Software prefetching of the rows that a kernel reads in sequence."""

from typing import Any

from quant.jit.vectors import inline, prefetch_l1, prefetch_l2
from quant.packing.format_spec import FormatSpec

# Prefetch distances in bytes. Hardware prefetchers stop at the end of a 4 KB page, and unpacking does too much work per
# byte to reach the next page early. One far line per superblock is enough for the prefetcher to open the next page; the
# other lines are prefetched at the near distance.
PREFETCH_NEAR, PREFETCH_FAR = 4096, 12288
# CPUs with a strong prefetcher need software prefetching only for long rows of formats that are costly to unpack: with
# 576 columns it made decoding slower by a quarter, and with 8 bits per weight it cost more than it gained.
LONG_ROW, DENSE_BITS = 2048, 8


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


# If the hardware prefetcher tracks each page separately, rows for one to three tokens are read as several streams far
# from each other, so that more memory requests are in flight. Lines are prefetched into the second-level cache only,
# because the first-level cache has few line fill buffers. Two threads of an Intel server read rows of Q4_K and Q6_K at
# 0.90 to 1.0 of the speed of a plain memory read, with one stream each at 0.82 to 0.88, and with two at 0.91 to 0.99.
N_STREAMS, STREAM_PREFETCH = 4, 2048
