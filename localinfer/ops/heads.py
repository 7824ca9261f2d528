"""Heads of activations, x[token][head][size]: in parts, and in the order of products that have a matrix for each head.

For such a product, the rows of a head are neighbours, a run (`quant.products.experts`): head after head, and in each
the tokens. Of many tokens, each head's begin with a tile, behind which rows may be empty.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.ops.experts import note_run
from quant.jit.threads import share
from quant.jit.vectors import f32x16, inline, load, splat, store
from quant.products.activations import groups_word

Body = Callable[..., None]


@inline
def copy(source: int, size: int, place: int) -> Any:
    """So many floats."""
    whole = size // 16 * 16
    for i in range(0, 4 * whole, 64):
        store(place + i, load(f32x16, source + i))
    for i in range(4 * whole, 4 * size, 4):
        store(place + i, load(float32, source + i))


def put_part() -> Body:
    """The kernel that copies `size` values of each head of each token, from its value x_first on to y_first; heads have
    x_step values, and in y y_step."""

    def body(tokens, x, x_first, x_step, heads, size, y, y_first, y_step, part, parts, scratch):
        items = load(int64, tokens) * heads
        for item in range(items * part // parts, items * (part + 1) // parts):
            copy(x + 4 * (x_step * item + x_first), size, y + 4 * (y_step * item + y_first))

    return body


def gather_heads(tile: int, passes: int) -> Body:
    """The kernel y[row] = x[token][head] of each row, 0 in empty rows, and q = y quantized unless q is 0; `lined_up`
    becomes how many rows there are."""
    quantize_groups, together = groups_word(tile, passes), max(tile, 1)

    def body(tokens, x, heads, size, y, q, lined_up, runs, part, parts, scratch):
        count = load(int64, tokens)
        room = (count + together - 1) // together * together
        first, end = share(heads * room, together, part, parts)
        for row in range(first, end):
            head, token, place = row // room, row % room, y + 4 * size * row
            if token < count:
                copy(x + 4 * size * (heads * token + head), size, place)
            else:
                for i in range(0, 4 * size, 64):
                    store(place + i, splat(f32x16, float32(0.0)))
            if q:
                quantize_groups(place, q, row, 0, size // 32, size)
        if part == 0:
            store(lined_up, heads * room)
            store(runs, heads)
            for head in range(heads):
                note_run(runs, head, head, head * room, count)

    return body
