"""The encoders of blocks of 32 weights: Q4_0, Q4_1, Q5_0 and Q5_1.

The scale and the min are searched. With effort "fast" and without importance, they follow from the outermost weights of
the block, bit-identical to ggml and the gguf package.
"""

from typing import Any

from numba import float32, int64, uint32

from quant.encoders.encoder import GROUPS
from quant.encoders.groups import NUMBERS, WEIGHTS, make_normalize, make_weigh
from quant.encoders.searches.affine import make_center
from quant.encoders.searches.affine import make_search as make_search_affine
from quant.encoders.searches.symmetric import make_search as make_search_symmetric
from quant.encoders.vector_math import broadcast, safe_reciprocal, store_scale
from quant.jit.vectors import (
    absolute,
    bits_from_mask,
    concat,
    convert,
    f32x16,
    floor,
    i32x16,
    inline,
    load,
    maximum,
    minimum,
    popcount,
    reduce_max,
    rint,
    store,
    u8x16,
)
from quant.packing.format_spec import Block, FormatSpec, field_offset

SCALES, MINS = NUMBERS, NUMBERS + 64  # offsets in scratch memory


def make_to_codes(top: int) -> Any:
    """Make the inlined to_codes(first, second): two f32x16 of integral values to codes, clamped to 0 .. `top`."""

    @inline
    def to_codes(first: Any, second: Any) -> Any:
        first = minimum(maximum(first, broadcast(0.0)), broadcast(top))
        second = minimum(maximum(second, broadcast(0.0)), broadcast(top))
        return concat(convert(u8x16, convert(i32x16, first)), convert(u8x16, convert(i32x16, second)))

    return to_codes


# --- bit-identical to the gguf package ------------------------------------------------------------------------------


@inline
def signed_absmax(x: int) -> Any:
    """Return the number of largest magnitude, with its sign, among 32 float32 at x; the first of equals."""
    first, second = absolute(load(f32x16, x)), absolute(load(f32x16, x + 64))
    peak = broadcast(reduce_max(maximum(first, second)))
    is_peak = uint32(bits_from_mask(first == peak)) | (uint32(bits_from_mask(second == peak)) << uint32(16))
    lanes_before = uint32(~is_peak & (is_peak - uint32(1)))
    return load(float32, x + 4 * int64(popcount(lanes_before)))


def make_encode_ggml(spec: FormatSpec, block: Block, store_codes32: Any) -> Any:
    """Make the inlined function encode_ggml(x, y), which encodes one block as ggml does."""
    zero, top = spec.zero_point, 2**spec.bits - 1
    to_codes, last = make_to_codes(top), float32(top)
    d_at, m_at = field_offset(block, "d"), 0 if zero else field_offset(block, "m")

    @inline
    def symmetric(x: int, y: int) -> None:
        first, second = load(f32x16, x), load(f32x16, x + 64)
        d = signed_absmax(x) / float32(-zero)
        inverse, half = broadcast(safe_reciprocal(d)), broadcast(zero + 0.5)
        store_scale(y + d_at, d)
        store_codes32(y, to_codes(floor(first * inverse + half), floor(second * inverse + half)))

    @inline
    def affine(x: int, y: int) -> None:
        first, second = load(f32x16, x), load(f32x16, x + 64)
        low, high = (
            float32(0.0) - reduce_max(broadcast(0.0) - minimum(first, second)),
            reduce_max(maximum(first, second)),
        )
        d = (high - low) / last
        inverse, half, least = broadcast(safe_reciprocal(d)), broadcast(0.5), broadcast(low)
        store_scale(y + d_at, d)
        store_scale(y + m_at, low)
        store_codes32(y, to_codes(floor((first - least) * inverse + half), floor((second - least) * inverse + half)))

    return symmetric if zero else affine


# --- searched -----------------------------------------------------------------------------------------------------


def make_encode_searched(spec: FormatSpec, block: Block, store_codes32: Any, effort: str) -> Any:
    """Make the inlined encode_searched(x, importance, count, y, scratch), which encodes up to sixteen blocks."""
    zero, levels = spec.zero_point, 2**spec.bits
    normalize, weigh = make_normalize(32, 1), make_weigh(32, 1)
    search_symmetric, center = make_search_symmetric(32, zero), make_center(32)
    search_affine = make_search_affine(32, levels, False, effort)
    to_codes, d_at, size = make_to_codes(levels - 1), field_offset(block, "d"), block.itemsize
    m_at = 0 if zero else field_offset(block, "m")

    @inline
    def symmetric(columns: int, weights: int, total_w: Any, known: bool) -> Any:
        return search_symmetric(columns, weights, known), broadcast(0.0)

    @inline
    def affine(columns: int, weights: int, total_w: Any, known: bool) -> Any:
        mean, low, high = center(columns, weights, total_w)
        scale, least = search_affine(columns, weights, mean, total_w, low, high, known)
        return scale, least + mean

    search = symmetric if zero else affine

    @inline
    def store_nearest(y: int, x: int, scale: float, least: float) -> None:
        inverse, low = broadcast(safe_reciprocal(store_scale(y + d_at, scale))), broadcast(0.0)
        if not zero:
            low = broadcast(store_scale(y + m_at, least))
        first = rint((load(f32x16, x) - low) * inverse) + broadcast(zero)
        store_codes32(y, to_codes(first, rint((load(f32x16, x + 64) - low) * inverse) + broadcast(zero)))

    @inline
    def encode_searched(x: int, importance: int, count: int, y: int, scratch: int) -> None:
        unit, _ = normalize(x, count, scratch)
        total_w = weigh(importance, count, scratch, scratch + WEIGHTS)
        scale, least = search(scratch, scratch + WEIGHTS, total_w, importance != 0)
        store(scratch + SCALES, scale * unit)
        store(scratch + MINS, least * unit)
        for i in range(count):
            numbers = scratch + 4 * i
            store_nearest(y + size * i, x + 128 * i, load(float32, numbers + SCALES), load(float32, numbers + MINS))

    return encode_searched


def make_encode(spec: FormatSpec, block: Block, store_codes32: Any, effort: str) -> Any:
    """Make the inlined function encode of `quant.encoders.encoder`.

    A weight is d * (code - zero_point), or d * code + m if the zero point is 0. store_codes32(block, codes) stores the
    codes of a block, u8x32.
    """
    encode_ggml = make_encode_ggml(spec, block, store_codes32)
    encode_searched = make_encode_searched(spec, block, store_codes32, effort)
    size = block.itemsize

    @inline
    def search(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        for first in range(0, n // 32, GROUPS):
            weights, count = importance + 128 * first if importance else 0, min(GROUPS, n // 32 - first)
            encode_searched(x + 128 * first, weights, count, y + size * first, scratch)

    @inline
    def search_if_weighted(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        if importance:
            search(x, importance, n, y, scratch)
        else:
            for i in range(n // 32):
                encode_ggml(x + 128 * i, y + size * i)

    return search_if_weighted if effort == "fast" else search
