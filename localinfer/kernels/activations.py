"""Activation functions between the matrices of a feed-forward network: act(x), or the gated unit act(gate) * up
(Shazeer, 2020)."""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.kernels.exponentials import exp, softplus
from quant.jit.threads import chunk_range
from quant.jit.vectors import (
    absolute,
    extract,
    f32x16,
    fma,
    inline,
    load,
    maximum,
    minimum,
    reduce_sum,
    select,
    splat,
    sqrt,
    store,
)
from quant.matmul.activations import make_quantize_groups

Body = Callable[..., None]
STRIP_COLUMNS = 128  # four groups of 32 columns


@inline
def logistic_product(x: Any, u: Any) -> Any:
    """Return x * sigmoid(u)."""
    one = splat(f32x16, float32(1.0))
    return x / (one + exp(splat(f32x16, float32(0.0)) - u))


@inline
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e**-x)."""
    return logistic_product(splat(f32x16, float32(1.0)), x)


@inline
def tanh(x: Any) -> Any:
    """Return tanh(x) = 2 * sigmoid(2 x) - 1."""
    return logistic_product(splat(f32x16, float32(2.0)), x + x) - splat(f32x16, float32(1.0))


@inline
def silu(x: Any) -> Any:
    """Return x * sigmoid(x) (Elfwing et al., 2017)."""
    return logistic_product(x, x)


@inline
def gelu_tanh(x: Any) -> Any:
    """Return the tanh approximation of GELU (Hendrycks and Gimpel, 2016): x/2 * (1 + tanh(u)) = x * sigmoid(2u), u =
    sqrt(2/pi) * (x + 0.044715 x^3)."""
    cubed = x * x * x
    inner = fma(cubed, splat(f32x16, float32(0.044715)), x)
    return logistic_product(x, inner * splat(f32x16, float32(1.5957691216057308)))


@inline
def gelu_quick(x: Any) -> Any:
    """Return the sigmoid approximation of GELU, x * sigmoid(1.702 x) (Hendrycks and Gimpel, 2016)."""
    return logistic_product(x, x * splat(f32x16, float32(1.702)))


@inline
def gelu_erf(x: Any) -> Any:
    """Return the exact GELU, x/2 * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, 2016).

    erfc(z) for z >= 0 is t * exp(-z^2 + P(t)), t = 1 / (1 + z/2): the Chebyshev fit of Numerical Recipes (Press et al.,
    1992, 6.2), with a relative error below 1.2e-7.
    """
    z = absolute(x) * splat(f32x16, float32(0.7071067811865476))
    one = splat(f32x16, float32(1.0))
    t = one / fma(z, splat(f32x16, float32(0.5)), one)
    p = splat(f32x16, float32(0.17087277))
    p = fma(p, t, splat(f32x16, float32(-0.82215223)))
    p = fma(p, t, splat(f32x16, float32(1.48851587)))
    p = fma(p, t, splat(f32x16, float32(-1.13520398)))
    p = fma(p, t, splat(f32x16, float32(0.27886807)))
    p = fma(p, t, splat(f32x16, float32(-0.18628806)))
    p = fma(p, t, splat(f32x16, float32(0.09678418)))
    p = fma(p, t, splat(f32x16, float32(0.37409196)))
    p = fma(p, t, splat(f32x16, float32(1.00002368)))
    p = fma(p, t, splat(f32x16, float32(-1.26551223)))
    tail = t * exp(p - z * z) * splat(f32x16, float32(0.5))  # half of erfc(z)
    return x * select(x > splat(f32x16, float32(0.0)), one - tail, tail)


@inline
def none(x: Any) -> Any:
    """Return x unchanged."""
    return x


@inline
def relu(x: Any) -> Any:
    """Return max(x, 0)."""
    zero = splat(f32x16, float32(0.0))
    return select(x < zero, zero, x)


@inline
def relu_squared(x: Any) -> Any:
    """Return relu(x)**2 (So et al., 2021)."""
    return relu(x) * relu(x)


@inline
def sigmoid_of_root(x: Any) -> Any:
    """Return the sigmoid of the signed square root of x, whose magnitude counts as at least 1e-6 unless it is 0."""
    zero = splat(f32x16, float32(0.0))
    root = sqrt(maximum(absolute(x), splat(f32x16, float32(1e-6))))
    return sigmoid(select(x < zero, zero - root, select(x > zero, root, zero)))


ACTIVATIONS = {
    "none": none,
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "gelu": gelu_tanh,
    "gelu_erf": gelu_erf,
    "gelu_quick": gelu_quick,
    "relu": relu,
    "relu_squared": relu_squared,
    "softplus": softplus,
    "sigmoid_of_root": sigmoid_of_root,
}


def make_gated_unit(act: Any) -> Any:
    """Make the gated unit of an activation, act(gate) * up."""

    @inline
    def unit(gate: Any, up: Any) -> Any:
        return act(gate) * up

    return unit


@inline
def clamped_swiglu(gate: Any, up: Any) -> Any:
    """Return gpt-oss's g * sigmoid(1.702 g) * (u + 1), where g = min(gate, 7) and u = up clamped to [-7, 7]."""
    limit = splat(f32x16, float32(7.0))
    g, u = minimum(gate, limit), maximum(minimum(up, limit), splat(f32x16, float32(-7.0)))
    return logistic_product(g, g * splat(f32x16, float32(1.702))) * (u + splat(f32x16, float32(1.0)))


GATED_UNITS = {name: make_gated_unit(act) for name, act in ACTIVATIONS.items()} | {"clamped_swiglu": clamped_swiglu}


def make_limited_swiglu(act: Any, size: float) -> Any:
    """Make the gated unit act(gate, size) * u, where u = up clamped to [-size, size]."""

    @inline
    def unit(gate: Any, up: Any) -> Any:
        limit = splat(f32x16, float32(size))
        return act(gate, limit) * maximum(minimum(up, limit), splat(f32x16, float32(-size)))

    return unit


@inline
def silu_of_limited(gate: Any, limit: Any) -> Any:
    """Return silu(min(gate, limit))."""
    return silu(minimum(gate, limit))


@inline
def limited_silu(gate: Any, limit: Any) -> Any:
    """Return min(silu(gate), limit)."""
    return minimum(silu(gate), limit)


LIMITED = {"silu_of_limited": silu_of_limited, "limited_silu": limited_silu}


@inline
def softly_limited(x: Any, size: float) -> Any:
    """Return size * tanh(x / size), to about 3e-7 of its value: near 0 by the polynomial of Cephes (Moshier, 1989)."""
    y = x / splat(f32x16, float32(size))
    square = y * y
    p = splat(f32x16, float32(-5.70498872745e-3))
    p = fma(p, square, splat(f32x16, float32(2.06390887954e-2)))
    p = fma(p, square, splat(f32x16, float32(-5.37397155531e-2)))
    p = fma(p, square, splat(f32x16, float32(1.33314422036e-1)))
    p = fma(p, square, splat(f32x16, float32(-3.33332819422e-1)))
    near = fma(y * square, p, y)
    return splat(f32x16, float32(size)) * select(absolute(y) < splat(f32x16, float32(0.625)), near, tanh(y))


def make_situ(beta: float, linear_beta: float) -> Any:
    """Make Kimi K3's gated unit SiTU (Kimi Team, 2026): beta * tanh(gate / beta) * sigmoid(gate) * linear_beta *
    tanh(up / linear_beta)."""

    @inline
    def unit(gate: Any, up: Any) -> Any:
        return logistic_product(softly_limited(gate, beta), gate) * softly_limited(up, linear_beta)

    return unit


def gated_unit(activation: str) -> Any:
    """Return one of GATED_UNITS, one of LIMITED with the limit that follows a colon, or `situ:beta:linear_beta`."""
    name, *numbers = activation.split(":")
    if name == "situ":
        return make_situ(*map(float, numbers))
    return make_limited_swiglu(LIMITED[name], float(numbers[0])) if numbers else GATED_UNITS[name]


def gated_activation(activation: str, tile: int, passes: int) -> Body:
    """Make the kernel gate = act(gate) * up (a `gated_unit`), or act(gate) if up is 0; q = gate quantized unless q
    is 0. Rows of up have up_n values, of which those from up_first on are used.

    Threads divide the columns of a tile's tokens into strips.
    """
    unit, quantize_groups, together = gated_unit(activation), make_quantize_groups(tile, passes), max(tile, 1)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        count, strips = load(int64, args.tokens), (n + STRIP_COLUMNS - 1) // STRIP_COLUMNS
        items = (count + together - 1) // together * strips
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            first, column = item // strips * together, item % strips * STRIP_COLUMNS
            end = min(column + STRIP_COLUMNS, n)
            for token in range(first, min(first + together, count)):
                row, factors = args.gate + 4 * n * token, args.up + 4 * (args.up_n * token + args.up_first)
                for i in range(column, end, 16):
                    factor = load(f32x16, factors + 4 * i) if args.up else splat(f32x16, float32(1.0))
                    store(row + 4 * i, unit(load(f32x16, row + 4 * i), factor))
                if args.q:
                    quantize_groups(row, args.q, token, column // 32, end // 32, n)

    return body


@inline
def xielu_of(x: Any, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Any:
    """Return alpha_p x^2 + beta x above 0, and alpha_n (e^min(x, eps) - 1 - x) + beta x below (xIELU; Huang and
    Schlag, 2024)."""
    zero, one = splat(f32x16, float32(0.0)), splat(f32x16, float32(1.0))
    above = splat(f32x16, float32(alpha_p)) * x * x
    below = splat(f32x16, float32(alpha_n)) * (exp(minimum(x, splat(f32x16, float32(eps)))) - one - x)
    return fma(splat(f32x16, float32(beta)), x, select(x > zero, above, below))


def xielu() -> Body:
    """Make the kernel x = xIELU(x), whose parameters are arguments."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for i in range(4 * args.n * first, 4 * args.n * end, 64):
            x = load(f32x16, args.x + i)
            store(args.x + i, xielu_of(x, args.alpha_p, args.alpha_n, args.beta, args.eps))

    return body


def gate_halves(activation: str, tile: int, passes: int) -> Body:
    """Make the kernel y = act(first half of a row of x) * second half, and q = y quantized unless q is 0; rows of x
    have 2 n values."""
    unit, quantize_groups, together = gated_unit(activation), make_quantize_groups(tile, passes), max(tile, 1)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        first, end = chunk_range(load(int64, args.tokens), together, chunk_index, n_chunks)
        for token in range(first, end):
            row, out = args.x + 8 * n * token, args.y + 4 * n * token
            for i in range(0, 4 * n, 64):
                store(out + i, unit(load(f32x16, row + i), load(f32x16, row + 4 * n + i)))
            if args.q:
                quantize_groups(out, args.q, token, 0, n // 32, n)

    return body


def gate_heads(activation: str) -> Body:
    """Make the kernel x[token][head] *= act(gate[token][head]), where heads have a multiple of 16 values."""
    act = ACTIVATIONS[activation]

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for head in range(args.heads * first, args.heads * end):
            factor = act(splat(f32x16, load(float32, args.gate + 4 * head)))
            for i in range(4 * args.size * head, 4 * args.size * (head + 1), 64):
                store(args.x + i, load(f32x16, args.x + i) * factor)

    return body


def sigmoid_gate() -> Body:
    """Make the kernel x[token] *= sigmoid(weight . h[token])."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        one, zero = splat(f32x16, float32(1.0)), splat(f32x16, float32(0.0))
        for token in range(first, end):
            score = zero
            for i in range(0, 4 * args.n_in, 64):
                score = fma(load(f32x16, args.weight + i), load(f32x16, args.h + 4 * args.n_in * token + i), score)
            factor = extract(one / (one + exp(zero - splat(f32x16, reduce_sum(score)))), 0)
            for i in range(4 * args.n * token, 4 * args.n * (token + 1), 64):
                store(args.x + i, load(f32x16, args.x + i) * splat(f32x16, factor))

    return body
