"""Q2_0: 64 weights in 18 bytes. A weight is d * (code - 1), where the code has 2 bits: -d, 0, d or 2d."""

from typing import Any

import numpy as np
from numba import float32, int64, uint8, uint32

from quant.encoders.searches.tiles import clamp_weights, importance_unit, load_normalized_importance
from quant.encoders.vector_math import broadcast, safe_reciprocal, store_scale
from quant.jit.cpu import target
from quant.jit.vectors import (
    absolute,
    bitcast,
    concat,
    convert,
    f32x16,
    fma,
    gather,
    i32x16,
    inline,
    load,
    make_shuffle,
    maximum,
    minimum,
    reduce_max,
    reduce_sum,
    rint,
    splat,
    store,
    u8x8,
    u8x16,
    u8x32,
    u8x64,
    u16x16,
    u32x8,
    u32x16,
)
from quant.packing.format_spec import FormatSpec
from quant.packing.half_scales import make_half_scales

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18
QS, SIZE = 2, 18

# qs: byte i holds columns 4i .. 4i + 3, the first in the lowest bits


def make_unpack_2bit(kind: Any) -> Any:
    """Return the inlined function unpack_2bit(packed): the four codes in each lane's low byte, spread over
    four bytes.
    """

    @inline
    def unpack_2bit(packed: Any) -> Any:
        pairs = packed | (packed << splat(kind, uint32(6)))
        return (pairs | (pairs << splat(kind, uint32(12)))) & splat(kind, uint32(0x03030303))

    return unpack_2bit


unpack_2bit_x16, unpack_2bit_x8 = make_unpack_2bit(u32x16), make_unpack_2bit(u32x8)


@inline
def codes64(superblock: int, j: int) -> Any:
    return bitcast(u8x64, unpack_2bit_x16(convert(u32x16, load(u8x16, superblock + SIZE * j + QS))))


@inline
def codes32(row: int, k: int) -> Any:
    return bitcast(u8x32, unpack_2bit_x8(convert(u32x8, load(u8x8, row + SIZE * (k // 2) + QS + 8 * (k % 2)))))


in_turns = make_shuffle([lane // 2 + lane % 2 * 16 for lane in range(32)])


@inline
def codes64_by_interleaving(superblock: int, j: int) -> Any:
    """Return the codes of columns 64j .. 64j+63, for CPUs that shift bytes."""
    packed, three = load(u8x16, superblock + SIZE * j + QS), splat(u8x16, uint8(3))
    first, second = packed & three, (packed >> splat(u8x16, uint8(2))) & three
    third, fourth = (packed >> splat(u8x16, uint8(4))) & three, packed >> splat(u8x16, uint8(6))
    low, high = in_turns(concat(first, second)), in_turns(concat(third, fourth))
    return bitcast(u8x64, in_turns(concat(bitcast(u16x16, low), bitcast(u16x16, high))))


scales, group_scale = make_half_scales(BLOCK, groups=2)
SPEC = FormatSpec(
    bits=2,
    group_size=32,
    superblock_bytes=4 * SIZE,
    codes64=codes64,
    ordered_codes=codes64_by_interleaving if target().has_shift_insert else None,
    scales=scales,
    codes32=codes32,
    group_scale=group_scale,
    zero_point=1,
)

# --- encoding -----------------------------------------------------------------------------------------------------

# Candidates for the largest weight divided by d: near 1 if three values are used, near 2 for four.
TRIED_RATIOS = {"fast": [1.0], "normal": [1.0, -1.0, *(sign * t for t in np.linspace(1.2, 2.6, 8) for sign in (1, -1))]}


@inline
def rounded_numbers(x: Any, inverse: float) -> Any:
    """Return the nearest of -1, 0, 1 and 2 to x * inverse, as f32x16."""
    return minimum(maximum(rint(x * broadcast(inverse)), broadcast(-1.0)), broadcast(2.0))


@inline
def load_weights16(x: int, sixteen: int) -> Any:
    """Load sixteen weights of a block."""
    return clamp_weights(load(f32x16, x + 64 * sixteen))


def make_best_scale(effort: str) -> Any:
    """Return the inlined function best_scale(x, importance, first, unit): the d of a block with the least error.

    For the numbers v that a candidate gives, the best d is (sum w x v) / (sum w v^2). The error is smaller the larger
    (sum w x v)^2 / (sum w v^2) is.
    """
    inverse_ratios = tuple(1 / t for t in TRIED_RATIOS[effort])

    @inline
    def best_scale(x: int, importance: int, first: int, unit: float) -> Any:
        sizes = absolute(load_weights16(x, 0))
        for sixteen in range(1, 4):
            sizes = maximum(sizes, absolute(load_weights16(x, sixteen)))
        most = reduce_max(sizes)
        best, gain = float32(0.0), float32(0.0)
        for inverse_ratio in inverse_ratios:
            inverse, product, norm = safe_reciprocal(most * float32(inverse_ratio)), broadcast(0.0), broadcast(0.0)
            for sixteen in range(4):
                v, w = (
                    rounded_numbers(load_weights16(x, sixteen), inverse),
                    load_normalized_importance(importance, first + 16 * sixteen, unit),
                )
                product, norm = fma(v * w, load_weights16(x, sixteen), product), fma(v * w, v, norm)
            p, q = reduce_sum(product), reduce_sum(norm)
            if q > float32(0.0) and p * (p / q) > gain:
                best, gain = p / q, p * (p / q)
        return best

    return best_scale


@inline
def store_block_codes(address: int, x: int, inverse: float, scratch: int) -> None:
    """Store the 64 codes of a block."""
    for sixteen in range(4):
        codes = convert(i32x16, rounded_numbers(load_weights16(x, sixteen), inverse) + broadcast(1.0))
        store(scratch + 16 * sixteen, convert(u8x16, codes))
    packed = splat(u8x16, uint8(0))
    for column in range(4):
        codes = gather(u8x16, scratch + column, int64(4))
        packed = packed | (codes << splat(u8x16, uint8(2 * column)))
    store(address, packed)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`."""
    best_scale = make_best_scale(effort)

    @inline
    def encode_row(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        unit = importance_unit(importance, n)
        for block in range(n // 64):
            numbers, block_address = x + 256 * block, y + SIZE * block
            d = best_scale(numbers, importance, 64 * block, unit)
            store_block_codes(block_address + QS, numbers, safe_reciprocal(store_scale(block_address, d)), scratch)

    return encode_row
