"""The signs of weights whose codes are codebook rows: codebooks hold magnitudes.

Some formats store all eight signs of eight columns. The others store seven: the eighth makes the number of negative
weights even. IQ2_XXS and IQ3_XXS store the signs and the scale of 32 columns in one uint32: four times seven sign bits,
the first column's in the lowest bit, and the scale in the top four bits.
"""

from typing import Any

from numba import int64, uint8, uint32

from quant.jit.vectors import (
    bitcast,
    extract,
    inline,
    mask_from_bits,
    popcount,
    select,
    splat,
    u8x32,
    u8x64,
    u32x8,
    u64x4,
)
from quant.packing.codebook_scales import odd_multiples8


@inline
def apply_signs(codes: Any, zero: int, negative: int) -> Any:
    """Negate the codes, u8x64, whose bit in `negative` is set, lowest bit first. `zero` is their zero point."""
    return select(mask_from_bits(negative), splat(u8x64, uint8(2 * zero)) - codes, codes)


@inline
def unpack_signs(sevens: Any, j: int) -> Any:
    """Return the signs of columns 64j .. 64j+63, one bit each, from seven sign bits for each eight columns, u8x32."""
    eights = sevens | (popcount(sevens) << splat(u8x32, uint8(7)))
    return extract(bitcast(u64x4, eights), int64(j))


@inline
def unpack_signs_of_words(words: Any, j: int) -> Any:
    """Return the signs of columns 64j .. 64j+63, one bit each, from the words with signs and scales, u32x8."""
    first = words & splat(u32x8, uint32(0x0000007F))
    second = (words << splat(u32x8, uint32(1))) & splat(u32x8, uint32(0x00007F00))
    third = (words << splat(u32x8, uint32(2))) & splat(u32x8, uint32(0x007F0000))
    fourth = (words << splat(u32x8, uint32(3))) & splat(u32x8, uint32(0x7F000000))
    return unpack_signs(bitcast(u8x32, first | second | third | fourth), j)


@inline
def unpack_scales_of_words(words: Any, d: float) -> Any:
    """Return d * (2 * scale + 1), f32x8, from the words with signs and scales, u32x8."""
    return odd_multiples8(words >> splat(u32x8, uint32(28)), d)
