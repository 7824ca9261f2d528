"""Scales, and mins, that blocks store in half precision without further packing."""

from typing import Any

from quant.jit.vectors import (
    convert,
    f16x8,
    f16x16,
    f32x8,
    f32x16,
    inline,
    load_half,
    make_gather,
    make_shuffle,
    splat,
)
from quant.packing.format_spec import Block, InlinedFunction, field_offset

evens, odds = make_shuffle(range(0, 16, 2)), make_shuffle(range(1, 16, 2))


def make_half_scales(block: Block, groups: int = 1) -> tuple[InlinedFunction, InlinedFunction]:
    """Return the inlined functions `scales` and `group_scale` of a format whose scale is the half precision field d.

    A block has `groups` groups of 32 columns (1, 2 or 4), which share its scale.
    """
    size, d = block.itemsize, field_offset(block, "d")
    eight_scales = make_gather(f16x8, [d + size * (group // groups) for group in range(8)], 2, 8 // groups * size)

    @inline
    def scales(superblock: int) -> Any:
        return convert(f32x8, eight_scales(superblock))

    @inline
    def group_scale(row: int, g: int) -> Any:
        return load_half(row + g // groups * size + d)

    return scales, group_scale


def make_half_scales_and_mins(
    block: Block,
) -> tuple[InlinedFunction, InlinedFunction, InlinedFunction, InlinedFunction]:
    """Return the inlined functions `scales`, `mins`, `group_scale` and `group_min`, for the adjacent half precision
    fields d (scale) and m (min).
    """
    size, d, m = block.itemsize, field_offset(block, "d"), field_offset(block, "m")
    eight_pairs = make_gather(f16x16, range(d, 8 * size, size), 4, 8 * size)

    @inline
    def both(superblock: int) -> Any:
        return convert(f32x16, eight_pairs(superblock))

    @inline
    def scales(superblock: int) -> Any:
        return evens(both(superblock))

    @inline
    def mins(superblock: int) -> Any:
        return odds(both(superblock))

    @inline
    def group_scale(row: int, g: int) -> Any:
        return load_half(row + g * size + d)

    @inline
    def group_min(row: int, g: int) -> Any:
        return load_half(row + g * size + m)

    return scales, mins, group_scale, group_min


def make_superblock_scale(d: int) -> InlinedFunction:
    """Return the inlined function `scales` of a format with one scale for all 256 columns, at offset `d`."""

    @inline
    def scales(superblock: int) -> Any:
        return splat(f32x8, load_half(superblock + d))

    return scales
