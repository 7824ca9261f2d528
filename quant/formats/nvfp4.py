"""NVFP4: 64 weights in 36 bytes. A weight is d * KVALUES[q], where q has 4 bits (`quant.packing.e2m1`). Each 16 weights
share a d.

d is half of an unsigned E4M3 number: four exponent bits with bias 7, and three mantissa bits. 0x7F is 0 here. Source:
NVIDIA's description of the format, and ggml's block structure.
"""

from typing import Any

import numpy as np
from numba import float32, int32, uint8, uint16

from quant.encoders.searches.tiles import clamp_weights, importance_unit, load_normalized_importance
from quant.encoders.vector_math import safe_reciprocal
from quant.jit.vectors import (
    absolute,
    bitcast,
    concat,
    convert,
    extract,
    f16x16,
    f32x16,
    i32x16,
    inline,
    load,
    make_constant,
    make_gather,
    make_lookup16,
    make_shuffle,
    reduce_max,
    reduce_sum,
    select,
    splat,
    store,
    u8x8,
    u8x16,
    u8x32,
    u8x64,
    u16x16,
    u32x8,
    u32x16,
    u64x4,
)
from quant.packing.e2m1 import CODES, KVALUES, ZERO_POINT, nearest_e2m1
from quant.packing.format_spec import FormatSpec

BLOCK = np.dtype([("d", "u1", 4), ("qs", "u1", 32)])
assert BLOCK.itemsize == 36
QS, SIZE = 4, 36

# qs: byte 8s + i holds columns 16s + i and 16s + 8 + i, i < 8, the first in its low nibble
in_turns = make_shuffle([lane // 2 + lane % 2 * 4 for lane in range(8)])
code_of, number_of = make_lookup16(CODES), make_lookup16(KVALUES)
twice = [8 * group + i for group in range(4) for _ in range(2) for i in range(8)]
two_of_each, one_of_each = make_shuffle(twice), make_shuffle(twice[:32])
low_then_high, low_then_high8 = make_constant(u32x16, [0, 0, 4, 4] * 4), make_constant(u32x8, [0, 0, 4, 4] * 2)
sixteen_scales = make_gather(u8x16, range(0, 4 * SIZE, SIZE), 4, 4 * SIZE)


@inline
def codes64(superblock: int, j: int) -> Any:
    pairs = bitcast(u32x16, two_of_each(load(u8x32, superblock + SIZE * j + QS)))
    return code_of(bitcast(u8x64, pairs >> low_then_high()) & splat(u8x64, uint8(15)))


@inline
def signed_codes(superblock: int, j: int) -> Any:
    both = load(u8x32, superblock + SIZE * j + QS)
    low, high = bitcast(u64x4, both & splat(u8x32, uint8(15))), bitcast(u64x4, both >> splat(u8x32, uint8(4)))
    return number_of(bitcast(u8x64, in_turns(concat(low, high))))


@inline
def codes32(row: int, k: int) -> Any:
    pairs = bitcast(u32x8, one_of_each(load(u8x16, row + SIZE * (k // 2) + QS + 16 * (k % 2))))
    return code_of(bitcast(u8x32, pairs >> low_then_high8()) & splat(u8x32, uint8(15)))


@inline
def decode_e4m3(d: Any) -> Any:
    """Return the scales, f32x16, for a u8x16. The bits, moved into a half, are the number times 2**-8, also if it is
    subnormal. In a float32 they would be subnormal, too, which many CPUs multiply slowly.
    """
    finite = select(d == splat(u8x16, uint8(0x7F)), splat(u8x16, uint8(0)), d) & splat(u8x16, uint8(0x7F))
    half = bitcast(f16x16, convert(u16x16, finite) << splat(u16x16, uint16(7)))
    return convert(f32x16, half) * splat(f32x16, float32(2.0**7))


@inline
def scales(superblock: int) -> Any:
    return decode_e4m3(sixteen_scales(superblock))


@inline
def scale(row: int, g: int) -> Any:
    return extract(decode_e4m3(splat(u8x16, load(uint8, row + SIZE * (g // 4) + g % 4))), 0)


SPEC = FormatSpec(
    bits=5,
    group_size=16,
    superblock_bytes=4 * SIZE,
    codes64=codes64,
    signed_codes=signed_codes,
    scales=scales,
    codes32=codes32,
    group_scale=scale,
    zero_point=ZERO_POINT,
)

# --- encoding -----------------------------------------------------------------------------------------------------

LARGEST_SCALE = 0x7E
NEIGHBOURS = {"fast": 0, "normal": 2}  # tried below and above the scale that fits the largest weight
upper_eight, lower_eight = make_shuffle(range(8, 16)), make_shuffle(range(8))


@inline
def nearest_scale(most: Any) -> Any:
    """Return the scale for which the largest magnitude becomes the largest entry of the table, rounded as in ggml: half
    up.
    """
    x = min(most / float32(6.0), float32(448.0))
    bits = bitcast(int32, x)  # as an int: the exponent with bias 127, then the mantissa
    normal = (bits >> int32(20)) - int32(120 << 3) + ((bits >> int32(19)) & int32(1))
    steps: Any = x * float32(512.0) + float32(0.5)
    subnormal = min(int32(steps), int32(7))
    return min(normal if bits >= int32(121 << 23) else subnormal, int32(LARGEST_SCALE))


@inline
def decode_scale(d: int) -> Any:
    """Return a scale as float32."""
    return extract(decode_e4m3(splat(u8x16, uint8(d))), 0)


@inline
def table_values(q: Any) -> Any:
    """Return the table entries, f32x16, at the indices q."""
    return convert(f32x16, convert(i32x16, code_of(convert(u8x16, q)))) - splat(f32x16, float32(ZERO_POINT))


def make_best_scale(neighbours: int) -> Any:
    """Return the inlined function best_scale(x, weights): the scale with the least error for sixteen weights.

    It tries the scale that fits the largest weight, and `neighbours` on each side.
    """

    @inline
    def best_scale(x: Any, weights: Any) -> Any:
        middle = nearest_scale(reduce_max(absolute(x)))
        best, least_error = middle, float32(np.inf)
        for d in range(max(middle - neighbours, 0), min(middle + neighbours, LARGEST_SCALE) + 1):
            scale = decode_scale(d)
            difference = x - table_values(nearest_e2m1(x, safe_reciprocal(scale))) * splat(f32x16, scale)
            error = reduce_sum(difference * difference * weights)
            if error < least_error:
                best, least_error = int32(d), error
        return best

    return best_scale


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row: see `quant.encoders.encoder`. With effort "fast" the blocks equal
    ggml's.
    """
    best_scale = make_best_scale(NEIGHBOURS[effort])

    @inline
    def encode_row(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        unit = importance_unit(importance, n)
        for g in range(n // 16):
            block, group, weights = y + SIZE * (g // 4), g % 4, clamp_weights(load(f32x16, x + 64 * g))
            d = best_scale(weights, load_normalized_importance(importance, 16 * g, unit))
            q = nearest_e2m1(weights, safe_reciprocal(decode_scale(d)))
            codes = convert(u8x16, q)
            store(block + group, uint8(d))
            store(block + QS + 8 * group, lower_eight(codes) | (upper_eight(codes) << splat(u8x8, uint8(4))))

    return encode_row
