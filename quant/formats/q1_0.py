"""Q1_0: 128 weights in 18 bytes. A weight is d or -d, depending on its bit."""

from typing import Any

import numpy as np
from numba import float32, uint16, uint32, uint64

from quant.encoders.searches.tiles import clamp_weights, importance_unit, load_normalized_importance
from quant.encoders.vector_math import store_scale
from quant.jit.bits import make_spread_bits
from quant.jit.vectors import (
    absolute,
    bits_from_mask,
    f32x16,
    fma,
    inline,
    load,
    reduce_sum,
    splat,
    store,
)
from quant.packing.format_spec import FormatSpec
from quant.packing.half_scales import make_half_scales

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18
QS, SIZE = 2, 18

twice_bit = make_spread_bits(1)

# A code is 0 or 2, so that the zero point is 1. qs: bit i belongs to column i and is set for d.


@inline
def codes64(superblock: int, j: int) -> Any:
    bits = load(uint64, superblock + SIZE * (j // 2) + QS + 8 * (j % 2))
    return twice_bit(bits)


@inline
def codes32(row: int, k: int) -> Any:
    bits = load(uint32, row + SIZE * (k // 4) + QS + 4 * (k % 4))
    return twice_bit(bits)


scales, group_scale = make_half_scales(BLOCK, groups=4)
SPEC = FormatSpec(
    bits=2,
    group_size=32,
    superblock_bytes=2 * SIZE,
    codes64=codes64,
    scales=scales,
    codes32=codes32,
    group_scale=group_scale,
    zero_point=1,
)


@inline
def encode_row(x: int, importance: int, n: int, y: int, scratch: int) -> None:
    """Encode a row of blocks: see `quant.encoders.encoder`.

    With the weights' signs as codes, the mean magnitude, weighted by importance, minimizes the squared error.
    """
    unit = importance_unit(importance, n)
    for block in range(n // 128):
        sizes, counts = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0))
        for sixteen in range(8):
            first = 128 * block + 16 * sixteen
            v, w = (
                clamp_weights(load(f32x16, x + 4 * first)),
                load_normalized_importance(importance, first, unit),
            )
            sizes, counts = fma(absolute(v), w, sizes), counts + w
            positive = bits_from_mask(v >= splat(f32x16, float32(0.0)))
            store(y + SIZE * block + QS + 2 * sixteen, uint16(positive))
        store_scale(y + SIZE * block, reduce_sum(sizes) / reduce_sum(counts))


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row. The result is optimal, so `effort` is ignored."""
    return encode_row
