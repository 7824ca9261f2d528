"""The codebook of IQ1_S and IQ1_M: 2048 rows of eight numbers, -1, 0 or 1. A code is 8 * (number + delta) plus the zero
point, where delta is 1/8 or -1/8.
"""

from typing import Any

from numba import int64, uint64

from quant.jit.vectors import concat, extract, inline, splat
from quant.packing.codebooks import load_codebook, make_codebook_lookup
from quant.packing.format_spec import InlinedFunction

ZERO_POINT, DELTA = 16, 1
entries = make_codebook_lookup(ZERO_POINT + 8 * load_codebook("iq1_s") + DELTA, bits=16)


@inline
def codes_with_positive_delta(rows: Any, j: int) -> Any:
    """Return the codes of columns 64j .. 64j+63 for positive deltas. `rows` has the row indices of 256 columns, u16x32
    as u64x8. Bits beyond the codebook's size are ignored.
    """
    return concat(entries(extract(rows, int64(2 * j))), entries(extract(rows, int64(2 * j + 1))))


def make_unpack_3bit(kind: Any) -> InlinedFunction:
    """Return the inlined function unpack_3bit(v): four 3-bit numbers from each u64 lane of a vector of type `kind`, the
    first in the lowest bits, as 16 bits each.
    """

    @inline
    def unpack_3bit(v: Any) -> Any:
        pairs = v | (v << splat(kind, uint64(13)))
        return (pairs | (pairs << splat(kind, uint64(26)))) & splat(kind, uint64(0x0007000700070007))

    return unpack_3bit
