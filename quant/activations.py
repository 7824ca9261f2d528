"""Activations as integers: what the dot product instructions eat.

Every 32 values (a group) share a scale, the largest magnitude over 16,319, and become whole numbers of 15 bits.
A number q is kept as two signed bytes, q = 128 * high + low, so that one pass of an 8-bit dot product over each
gives the exact product with the weights' codes.

Two layouts. `flat`, for a few tokens, one after the other:

    high[n] low[n] scale[n/32] sums32[n/32] sums16[n/16]

`tiled`, for many: tiles of T tokens, a record for every group of 32, so that the matrix kernel reads one stream:

    high[8][T][4] low[8][T][4] scale[T] sums32[T] sums16[2][T]

A sum is that of the rounded values, scale included; it multiplies what a weight format adds to its scaled codes.
"""

from typing import Any

from numba import float32, int32, int64

from quant.vectors import (
    absolute,
    bitcast,
    convert,
    extract,
    f32x16,
    i8x16,
    i32x8,
    i32x16,
    inline,
    join,
    largest,
    load,
    maximum,
    splat,
    store,
    total,
)

LARGEST = 16_319  # 127 * 128 + 63: what two signed bytes of this form can hold


@inline
def high_part(q: Any) -> Any:
    """The multiple of 128 nearest to q, over 128."""
    return (q + splat(i32x16, int32(64))) >> splat(i32x16, int32(7))


@inline
def put_flat(q0: Any, q1: Any, high: int, low: int) -> None:
    """Store the two bytes of 32 numbers where neighbours are neighbours."""
    h0, h1 = high_part(q0), high_part(q1)
    seven = splat(i32x16, int32(7))
    store(high, join(convert(i8x16, h0), convert(i8x16, h1)))
    store(low, join(convert(i8x16, q0 - (h0 << seven)), convert(i8x16, q1 - (h1 << seven))))


@inline
def put_tiled(q0: Any, q1: Any, high: int, low: int, step: int) -> None:
    """Store the two bytes of 32 numbers four by four, `step` bytes apart."""
    h0, h1 = high_part(q0), high_part(q1)
    seven = splat(i32x16, int32(7))
    highs = bitcast(i32x8, join(convert(i8x16, h0), convert(i8x16, h1)))
    lows = bitcast(i32x8, join(convert(i8x16, q0 - (h0 << seven)), convert(i8x16, q1 - (h1 << seven))))
    for four in range(8):
        store(high + four * step, extract(highs, int64(four)))
        store(low + four * step, extract(lows, int64(four)))


@inline
def quantize_group(v0: Any, v1: Any, out: int, group: int, n: int, token: int, tile: int) -> None:
    """Quantize 32 values (two f32x16), group number `group` of the n of a token, into either layout.

    `out` is the token's own address (tile == 0) or that of its tile, in which it is number `token`.
    A value that is not finite makes the scale NaN, and so everything that is computed from it.
    """
    peak = largest(maximum(absolute(v0), absolute(v1)))
    tainted = total((v0 + v1) * splat(f32x16, float32(0.0)))
    inverse = float32(LARGEST) / peak if peak > float32(0.0) else float32(0.0)
    scale = peak / float32(LARGEST) + tainted
    q0 = convert(i32x16, v0 * splat(f32x16, inverse))
    q1 = convert(i32x16, v1 * splat(f32x16, inverse))
    sum0, sum1 = scale * float32(total(q0)), scale * float32(total(q1))
    if tile == 0:
        put_flat(q0, q1, out + 32 * group, out + n + 32 * group)
        scales = out + 2 * n
        store(scales + 4 * group, scale)
        store(scales + n // 8 + 4 * group, sum0 + sum1)
        store(scales + n // 4 + 8 * group, sum0)
        store(scales + n // 4 + 8 * group + 4, sum1)
    else:
        record = out + 80 * tile * group
        put_tiled(q0, q1, record + 4 * token, record + 32 * tile + 4 * token, 4 * tile)
        scales = record + 64 * tile + 4 * token
        store(scales, scale)
        store(scales + 4 * tile, sum0 + sum1)
        store(scales + 8 * tile, sum0)
        store(scales + 12 * tile, sum1)


@inline
def token_address(out: int, n: int, token: int, tile: int) -> int:
    """Where `quantize_group` wants token number `token` of a batch: its own place, or that of its tile."""
    return out + token * (2 * n + n // 2) if tile == 0 else out + token // tile * (tile * (2 * n + n // 2))


@inline
def quantize_row(x: int, out: int, n: int, token: int, tile: int) -> None:
    """Quantize the n floats at x as token number `token` of the batch at `out`."""
    place = token_address(out, n, token, tile)
    within = 0 if tile == 0 else token % tile
    for group in range(n // 32):
        v0, v1 = load(f32x16, x + 128 * group), load(f32x16, x + 128 * group + 64)
        quantize_group(v0, v1, place, group, n, within, tile)


def quantize(tile: int) -> Any:
    """The kernel that quantizes the rows of x, laid out for tiles of that many tokens, or flat for 0."""

    def body(tokens, x, n, out, part, parts, scratch):
        count = load(int64, tokens)
        for token in range(count * part // parts, count * (part + 1) // parts):
            quantize_row(x + 4 * n * token, out, n, token, tile)

    return body
