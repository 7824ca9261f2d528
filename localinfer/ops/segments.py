"""Segments: the tokens of a batch that are of one sequence, one behind the other.

In memory, int64: how many there are; then for each the number of its tokens, and two words of whoever reads it.
"""

from numba import int64

from localinfer.ops.layout import SEGMENT_WORDS
from quant.jit.vectors import inline, load

SEGMENT_BYTES = 8 * SEGMENT_WORDS


@inline
def segments_end(segments: int) -> int:
    """Behind the last segment; the first is 8 bytes behind their number."""
    return segments + 8 + SEGMENT_BYTES * load(int64, segments)
