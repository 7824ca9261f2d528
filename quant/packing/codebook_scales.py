"""The scales of the IQ formats: odd multiples of a half precision number d, d * (2 * scale + 1)."""

from typing import Any

from numba import float32, uint32, uint64

from quant.jit.vectors import bitcast, convert, f32x8, f32x16, inline, load, load_half, splat, u8x4, u8x8
from quant.packing.format_spec import InlinedFunction
from quant.packing.nibbles import unpack_nibbles


def make_odd_multiples(kind: Any) -> InlinedFunction:
    """Return the inlined function odd_multiples(scale, d): d * (2 * scale + 1), a vector of type `kind`."""

    @inline
    def odd_multiples(scale: Any, d: float) -> Any:
        number = convert(kind, scale)
        return (number + number + splat(kind, float32(1.0))) * splat(kind, float32(d))

    return odd_multiples


odd_multiples8, odd_multiples16 = make_odd_multiples(f32x8), make_odd_multiples(f32x16)


def make_nibble_scales(d: int, scales: int, n_groups: int, factor: float) -> InlinedFunction:
    """Return the inlined function scales(block): factor * d * (2 * scale + 1) for `n_groups` groups, 8 or 16.

    d is at offset `d` of a block. The scales have 4 bits and begin at offset `scales`, the first in the low nibble.
    """

    @inline
    def scales8(block: int) -> Any:
        packed = unpack_nibbles(bitcast(u8x4, load(uint32, block + scales)))
        return odd_multiples8(packed, load_half(block + d) * float32(factor))

    @inline
    def scales16(block: int) -> Any:
        packed = unpack_nibbles(bitcast(u8x8, load(uint64, block + scales)))
        return odd_multiples16(packed, load_half(block + d) * float32(factor))

    return {8: scales8, 16: scales16}[n_groups]
