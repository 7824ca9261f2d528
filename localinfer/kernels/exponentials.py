"""Exponential functions of vectors of 16 floats."""

from typing import Any

from numba import float32, int32

from quant.jit.vectors import (
    absolute,
    bitcast,
    convert,
    f32x16,
    fma,
    i32x16,
    inline,
    maximum,
    minimum,
    rint,
    select,
    splat,
)

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.693145751953125, 1.42860682030941723212e-6


@inline
def exp(v: Any) -> Any:
    """Return e**v of an f32x16 to about one unit in the last place; 0 below -87, the value at 88 above it, NaN for NaN.

    Cody-Waite reduction to |r| <= ln(2)/2, then the Taylor polynomial of degree 7, then 2**n through the exponent.
    """
    x = maximum(minimum(v, splat(f32x16, 88.0)), splat(f32x16, -104.0))
    n = rint(x * splat(f32x16, LOG2_E))
    r = fma(n, splat(f32x16, -LN2_HIGH), x)
    r = fma(n, splat(f32x16, -LN2_LOW), r)
    p = splat(f32x16, 1.0 / 5040)
    p = fma(p, r, splat(f32x16, 1.0 / 720))
    p = fma(p, r, splat(f32x16, 1.0 / 120))
    p = fma(p, r, splat(f32x16, 1.0 / 24))
    p = fma(p, r, splat(f32x16, 1.0 / 6))
    p = fma(p, r, splat(f32x16, 0.5))
    p = fma(p, r, splat(f32x16, 1.0))
    p = fma(p, r, splat(f32x16, 1.0))
    exponent = convert(i32x16, maximum(n, splat(f32x16, -127.0))) + splat(i32x16, 127)
    return select(v == v, p * bitcast(f32x16, exponent << splat(i32x16, 23)), v)


@inline
def exp2(v: Any) -> Any:
    """Return 2**v of an f32x16 up to 127, to about one unit in the last place; 0 below -126.5, NaN for NaN.

    v = n + r with |r| <= 1/2 is exact; then the Taylor polynomial of degree 6, and 2**n through the exponent.
    """
    x = select(v < splat(f32x16, -127.0), splat(f32x16, -127.0), v)
    n = rint(x)
    r = x - n
    p = splat(f32x16, 0.00015403530393381608)  # ln(2)^6 / 6!, and so on
    p = fma(p, r, splat(f32x16, 0.0013333558146428443))
    p = fma(p, r, splat(f32x16, 0.009618129107628477))
    p = fma(p, r, splat(f32x16, 0.05550410866482158))
    p = fma(p, r, splat(f32x16, 0.2402265069591007))
    p = fma(p, r, splat(f32x16, 0.6931471805599453))
    p = fma(p, r, splat(f32x16, 1.0))
    return p * bitcast(f32x16, (convert(i32x16, n) + splat(i32x16, 127)) << splat(i32x16, 23))


@inline
def power_of_two(n: Any) -> Any:
    """Return 2**n of an integer-valued float up to 0; 0 below -126."""
    exponent = int32(n) if n > float32(-127.0) else int32(-127)
    return bitcast(float32, int32((exponent + int32(127)) << int32(23)))


@inline
def tanh(v: Any) -> Any:
    """Return tanh of an f32x16, to about 2e-7: 1 - 2 / (e^2v + 1)."""
    one = splat(f32x16, float32(1.0))
    x, most = v * splat(f32x16, float32(2 * LOG2_E)), splat(f32x16, float32(100.0))
    return one - splat(f32x16, float32(2.0)) / (exp2(select(x > most, most, x)) + one)


@inline
def softplus(x: Any) -> Any:
    """Return log(1 + e**x) = max(x, 0) + log1p(u), u = e**-|x|; log1p(u) = 2 atanh(s), s = u / (2 + u) <= 1/3."""
    zero, one = splat(f32x16, float32(0.0)), splat(f32x16, float32(1.0))
    u = exp(zero - absolute(x))
    s = u / (u + one + one)
    square = s * s
    p = splat(f32x16, 1.0 / 15)
    p = fma(p, square, splat(f32x16, 1.0 / 13))
    p = fma(p, square, splat(f32x16, 1.0 / 11))
    p = fma(p, square, splat(f32x16, 1.0 / 9))
    p = fma(p, square, splat(f32x16, 1.0 / 7))
    p = fma(p, square, splat(f32x16, 1.0 / 5))
    p = fma(p, square, splat(f32x16, 1.0 / 3))
    p = fma(p, square, one)
    return maximum(x, zero) + (s + s) * p
