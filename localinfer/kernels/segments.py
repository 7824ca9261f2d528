"""Segments: contiguous tokens of a batch that belong to one sequence.

The layout is int64: the number of segments; then for each, the number of its tokens and two words that depend on the
kernel.
"""

from numba import int64

from localinfer.kernels.layout import SEGMENT_WORDS
from quant.jit.vectors import inline, load

SEGMENT_BYTES = 8 * SEGMENT_WORDS


@inline
def segments_end(segments: int) -> int:
    """Return the address after the last segment. The first segment is 8 bytes after the count."""
    return segments + 8 + SEGMENT_BYTES * load(int64, segments)
