"""The last step of every search: write the nearest codes for the scales that a block already holds."""

from typing import Any

from numba import float32

from quant.encoders.vector_math import broadcast, safe_reciprocal
from quant.jit.vectors import convert, f32x16, i32x16, inline, load, maximum, minimum, rint, splat, store, u8x16
from quant.packing.format_spec import FormatSpec

SCALES, MINS, CODES = 0, 64, 128  # offsets in scratch memory


def make_store_nearest(spec: FormatSpec, store_codes: Any) -> Any:
    """Make the inlined store_nearest(superblock, x, scratch): write the nearest codes of the 256 float32 at x."""
    scales, mins, group, zero = spec.scales, spec.mins or spec.scales, spec.group_size, spec.zero_point
    top = float32(2**spec.bits - 1)

    @inline
    def store_nearest(superblock: int, x: int, scratch: int) -> None:
        store(scratch + SCALES, scales(superblock))
        store(scratch + MINS, mins(superblock))
        for sixteen in range(16):
            at = 16 * sixteen // group * 4
            least = float32(0.0) if zero else load(float32, scratch + MINS + at)
            inverse = safe_reciprocal(load(float32, scratch + SCALES + at))
            steps = (load(f32x16, x + 64 * sixteen) - broadcast(least)) * broadcast(inverse)
            code = minimum(maximum(rint(steps) + broadcast(zero), broadcast(0.0)), splat(f32x16, top))
            store(scratch + CODES + 16 * sixteen, convert(u8x16, convert(i32x16, code)))
        store_codes(superblock, scratch + CODES)

    return store_nearest
