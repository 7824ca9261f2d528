"""Products of F32, F16 and BF16, weights that are numbers already, with floats or with bfloat16.

    matvec     a few tokens: rows straight from the file, bound by memory
    matmul     many tokens: rows are copied into panels, as numbers of the activations' type, and a register tile takes
               some rows and some tokens at a time

The kernels are those of `quant.products.rows` and `quant.products.panels`, with activations that are not quantized:
[token][n_in] of what `takes` says, "f32" or "bf16". Sums are of single precision.

A row is multiplied in stretches of columns, one after the other for all tokens, so that a tile's tokens stay in the
nearest cache. A stretch has sixteen sums, and a column belongs to one of them whatever the tile is; so a product comes
out the same to the last bit whether a token is alone or in a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from llvmlite import ir
from numba import float32, int64, types

from quant.formats.floats import BYTES, F32, ONE, PUT, SIXTEEN
from quant.jit.cpu import target
from quant.jit.emit import I64, constant, emit_load
from quant.jit.simd import BFLOATS, emit_dot2, emit_fma
from quant.jit.threads import share
from quant.jit.vectors import (
    Vector,
    emit_fold,
    emit_prefetch,
    emit_sum,
    fma,
    inline,
    intrinsic,
    load,
    prefetch,
    store,
    word,
)
from quant.products.base import put_base
from quant.products.layout import CACHE_BYTES
from quant.products.rows import AHEAD, FAR, NEAR, STREAMS
from quant.products.sums import emit_fold_four, emit_lanes

Body = Callable[..., None]
Asks = Sequence[tuple[int, int]]  # how many bytes ahead memory is asked for, and for which cache

STEP_BYTES = 64  # of activations that an instruction multiplies
SUMS_BYTES = 128  # in scratch, of a tile; panels begin at a cache line
STRETCH = 2048  # columns: five tokens of them in bfloat16 fill 20 KB of a nearest cache of 32


@dataclass(frozen=True)
class Factors:
    """What is multiplied: weights of a type, and activations of one."""

    room: str
    takes: str

    @property
    def columns(self) -> int:
        """Those of a step."""
        return STEP_BYTES // BYTES[self.takes]

    def weights(self, b: ir.IRBuilder, address: ir.Value) -> ir.Value:
        """A step's weights, as numbers of the activations' type."""
        return emit_load(b, BFLOATS, address) if self.takes == "bf16" else SIXTEEN[self.room](b, address)

    def activations(self, b: ir.IRBuilder, address: ir.Value) -> ir.Value:
        """A step's activations."""
        return emit_load(b, BFLOATS if self.takes == "bf16" else F32, address)

    def add(self, b: ir.IRBuilder, weights: ir.Value, x: ir.Value, sums: ir.Value) -> ir.Value:
        """A step's products, added to sixteen sums."""
        return (emit_dot2 if self.takes == "bf16" else emit_fma)(b, weights, x, sums)


def emit_totals(b: ir.IRBuilder, sums: Sequence[ir.Value], out: ir.Value) -> None:
    """The sum of each vector, one float after the other. Four at a time cost less, and come to the same bits."""
    fours = len(sums) // 4 * 4
    totals = [emit_lanes(b, emit_fold_four(b, sums[at : at + 4], b.fadd), [0, 4, 8, 12]) for at in range(0, fours, 4)]
    totals += [emit_fold(b, each, b.fadd) for each in sums[fours:]]
    places = [*range(0, fours, 4), *range(fours, len(sums))]
    for at, value in zip(places, totals, strict=True):
        b.store(value, b.inttoptr(b.add(out, I64(4 * at)), value.type.as_pointer()), align=4)


def dot_tile(factors: Factors, rows: int, tokens: int, asks: Asks) -> Any:
    """The word dots(row, row_bytes, x, x_bytes, steps, out): float32 out[tokens][rows], products over whole steps.

    What reads a file's rows one after the other asks ahead, for the reason that `quant.products.rows` has.
    """
    step_bytes = factors.columns * BYTES[factors.room]
    pairs = [(i, j) for j in range(tokens) for i in range(rows)]

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        row, row_bytes, x, x_bytes, steps, out = args
        rows_at = [b.add(row, b.mul(row_bytes, I64(i))) for i in range(rows)]
        tokens_at = [b.add(x, b.mul(x_bytes, I64(j))) for j in range(tokens)]

        def step(k: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            at, x_at = b.mul(k, I64(step_bytes)), b.mul(k, I64(STEP_BYTES))
            for place, (ahead, level) in product(rows_at, asks):
                emit_prefetch(b, b.add(place, b.add(at, I64(ahead))), level)
            weights = [factors.weights(b, b.add(place, at)) for place in rows_at]
            values = [factors.activations(b, b.add(place, x_at)) for place in tokens_at]
            return [factors.add(b, weights[i], values[j], s) for (i, j), s in zip(pairs, acc, strict=True)]

        sums = emit_sum(b, steps, [constant(F32, 0.0)] * len(pairs), step)
        emit_totals(b, sums, out)
        return out

    @intrinsic
    def dots(typingctx: Any, row: Any, row_bytes: Any, x: Any, x_bytes: Any, steps: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 6, emit)

    return dots


def multiply_word(factors: Factors, rows: int, tokens: int, asks: Asks = ()) -> Any:
    """The word multiply(valid, row, row_bytes, x, x_bytes, n, y, y_row, y_stride, add, sums): the products of a tile's
    first rows over n columns, to or added to y[token][row]: numbers of rows are y_row bytes from each other."""
    dots, columns, neighbours = dot_tile(factors, rows, tokens, asks), factors.columns, Vector(types.float32, rows)
    weight, weight_bytes = ONE[factors.room], BYTES[factors.room]
    value, value_bytes = ONE[factors.takes], BYTES[factors.takes]

    @inline
    def finish(result: float, row: int, x: int, n: int) -> Any:
        """With the columns that are left over."""
        for i in range(n // columns * columns, n):
            result = fma(weight(row + weight_bytes * i), value(x + value_bytes * i), result)
        return result

    @inline
    def multiply(
        valid: int, row: int, row_bytes: int, x: int, x_bytes: int, n: int,
        y: int, y_row: int, y_stride: int, add: int, sums: int,
    ) -> None:  # fmt: skip
        dots(row, row_bytes, x, x_bytes, n // columns, sums)
        if valid == rows and y_row == 4 and n % columns == 0:
            for j in range(tokens):
                place, result = y + j * y_stride, load(neighbours, sums + 4 * rows * j)
                store(place, result + load(neighbours, place) if add else result)
            return
        for j in range(tokens):
            for i in range(valid):
                place, total = y + j * y_stride + y_row * i, load(float32, sums + 4 * (rows * j + i))
                result = finish(total, row + i * row_bytes, x + j * x_bytes, n)
                store(place, result + load(float32, place) if add else result)

    return multiply


def matvec(room: str, takes: str) -> Body:
    """The kernel y[token][row] = base[token][row] + w[row] . x[token] for a few tokens, a row after the other, as
    memory likes it; `base` may be 0."""
    multiply = multiply_word(Factors(room, takes), 1, 1, () if target().far_sighted else ((FAR, 2), (NEAR, 1)))
    multiply_streams = multiply_word(Factors(room, takes), STREAMS, 1, ((AHEAD, 2),))
    size, x_size, in_streams = BYTES[room], BYTES[takes], target().follows_pages

    def body(tokens, x, w, row_bytes, n_in, n_out, base, base_stride, y, y_stride, stop, part, parts, scratch):
        first, end = share(n_out, 8, part, parts)
        count = load(int64, tokens)
        put_base(base, base_stride, y, y_stride, count, first, end)
        if in_streams and count == 1:
            each = (end - first) // STREAMS
            for row in range(first, first + each):
                for column in range(0, n_in, STRETCH):
                    at, x_at = w + row * row_bytes + size * column, x + x_size * column
                    n, add, apart = min(STRETCH, n_in - column), base or column, each * row_bytes
                    multiply_streams(STREAMS, at, apart, x_at, 0, n, y + 4 * row, 4 * each, 0, add, scratch)
            first += STREAMS * each
        for row in range(first, end):
            for token in range(count):
                place = y + token * y_stride + 4 * row
                for column in range(0, n_in, STRETCH):
                    at, x_at = w + row * row_bytes + size * column, x + x_size * (n_in * token + column)
                    n, add = min(STRETCH, n_in - column), base or column
                    multiply(1, at, row_bytes, x_at, x_size * n_in, n, place, 4, y_stride, add, scratch)

    return body


def copy_word(factors: Factors) -> Any:
    """The word copy(row, n, place): n weights, as numbers of the activations' type."""
    one, size, put, x_size = ONE[factors.room], BYTES[factors.room], PUT[factors.takes], BYTES[factors.takes]
    columns = factors.columns

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        weights = factors.weights(b, args[0])
        return b.store(weights, b.inttoptr(args[1], weights.type.as_pointer()), align=1)

    @intrinsic
    def copy_step(typingctx: Any, row: Any, place: Any) -> Any:
        return word(types.void, [types.int64] * 2, emit)

    @inline
    def copy(row: int, n: int, place: int) -> None:
        whole = n // columns * columns
        for i in range(0, whole, columns):
            copy_step(row + size * i, place + x_size * i)
        for i in range(whole, n):
            put(place + x_size * i, one(row + size * i))

    return copy


def fetch_word(tokens: int) -> Any:
    """The word fetch(x, x_bytes, first, end): have the bytes first .. end of each token of a tile fetched."""

    @inline
    def fetch(x: int, x_bytes: int, first: int, end: int) -> None:
        for token in range(tokens):
            for at in range(first, end, 64):
                prefetch(x + x_bytes * token + at)

    return fetch


def matmul(room: str, takes: str) -> Body:
    """The kernel y[token][row] = base[token][row] + w[row] . x[token] for many tokens; `base` may be 0.

    A stretch of some rows is copied once, of as many as a core's cache holds, and meets all tokens, a tile at a time.
    """
    rows, width = (4, 5) if target().sums >= 24 else (2, 3)
    copy, copied = copy_word(Factors(room, takes)), Factors(takes, takes)
    whole, narrow = multiply_word(copied, rows, width), multiply_word(copied, rows, 1)
    size, x_size, fetch = BYTES[room], BYTES[takes], fetch_word(width)

    def body(tokens, x, w, row_bytes, n_in, n_out, base, base_stride, y, y_stride, stop, part, parts, scratch):
        first, end = share(n_out, rows, part, parts)
        count, x_bytes, step = load(int64, tokens), x_size * n_in, x_size * min(n_in, STRETCH) + 64
        panel, block = scratch + SUMS_BYTES, CACHE_BYTES // (step * rows) * rows
        put_base(base, base_stride, y, y_stride, count, first, end)
        for start in range(first, end, block):
            until = min(start + block, end)
            for column in range(0, n_in, STRETCH):
                if load(int64, stop):
                    return
                n, add = min(STRETCH, n_in - column), base or column
                for row in range(start, until + (start - until) % rows):
                    copy(w + min(row, until - 1) * row_bytes + size * column, n, panel + (row - start) * step)
                for token in range(0, count, width):
                    x_at = x + x_bytes * token + x_size * column
                    following, share_bytes = x_at + width * x_bytes, x_size * n * rows // (until - start)
                    for row in range(start, until, rows):
                        at, place = panel + (row - start) * step, y + token * y_stride + 4 * row
                        valid, fetched = min(rows, until - row), (row - start) // rows * share_bytes
                        fetch(following, x_bytes, fetched, fetched + share_bytes)
                        if token + width <= count:
                            whole(valid, at, step, x_at, x_bytes, n, place, 4, y_stride, add, scratch)
                        else:
                            for j in range(count - token):
                                here, x_here = place + j * y_stride, x_at + x_bytes * j
                                narrow(valid, at, step, x_here, x_bytes, n, here, 4, y_stride, add, scratch)

    return body
