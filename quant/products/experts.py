"""Products with some of many matrices of one shape, which lie one behind the other: the experts of a mixture, or those
of heads.

Rows of activations that meet the same matrix are neighbours, a run. Where runs are tiles, all threads share each
matrix, as they share a single one: so it makes no difference how many rows each run has. Where they are a few rows,
what counts is memory: a part is neighbours of all rows of all matrices that are met, so that it reads long stretches.

    runs    int64: how many there are, then for each its matrix, its first row, and how many rows it has

A run's results begin at y + y_row * its first row + y_matrix * its matrix, and are y_stride bytes apart.
"""

from typing import Any

from numba import int64

from quant.codes.words import Body
from quant.formats.floats import BYTES
from quant.jit.threads import share
from quant.jit.vectors import inline, load
from quant.products import float_products, panels, rows
from quant.products.activations import superblocks_of
from quant.products.layout import PLACES, RUN_WORDS, flat_bytes, record_bytes

HEADER, WORDS = 8, 8 * RUN_WORDS
PIECE = 8  # rows that a part has at least


def row_bytes_word(takes: str, unit: int) -> Any:
    """The word x_row_bytes(n): what a row of n activations takes."""
    size = BYTES.get(takes, 0)

    @inline
    def x_row_bytes(n: int) -> Any:
        return size * n if size else superblocks_of(n) * unit

    return x_row_bytes


def runs_of(product: Body, takes: str, unit: int) -> Body:
    """The kernel that does the product of each run."""
    multiply, x_row_bytes = inline(product), row_bytes_word(takes, unit)

    def body(
        tokens, runs, x, w, row_bytes, n_in, n_out, bias, y, y_row, y_matrix, y_stride, stop, part, parts, scratch
    ):  # fmt: skip
        x_bytes = x_row_bytes(n_in)
        for run in range(load(int64, runs)):
            place = runs + HEADER + WORDS * run
            matrix, first = load(int64, place), load(int64, place + 8)
            base = bias + 4 * n_out * matrix if bias else 0
            multiply(
                place + 16, x + first * x_bytes, w + matrix * row_bytes * n_out, row_bytes, n_in, n_out, base, 0,
                y + y_row * first + y_matrix * matrix, y_stride, stop, part, parts, scratch,
            )  # fmt: skip

    return body


def cut_runs_of(product: Body, takes: str, unit: int) -> Body:
    """The same, where a part is some rows of one or more matrices, neighbours."""
    multiply, x_row_bytes = inline(product), row_bytes_word(takes, unit)

    def body(
        tokens, runs, x, w, row_bytes, n_in, n_out, bias, y, y_row, y_matrix, y_stride, stop, part, parts, scratch
    ):  # fmt: skip
        x_bytes, pieces = x_row_bytes(n_in), (n_out + PIECE - 1) // PIECE
        begin, end = share(load(int64, runs) * pieces, 1, part, parts)
        for run in range(begin // pieces, (end + pieces - 1) // pieces):
            place = runs + HEADER + WORDS * run
            matrix, first = load(int64, place), load(int64, place + 8)
            row, until = max(0, begin - run * pieces) * PIECE, min(n_out, (end - run * pieces) * PIECE)
            base = bias + 4 * (n_out * matrix + row) if bias else 0
            multiply(
                place + 16, x + first * x_bytes, w + (n_out * matrix + row) * row_bytes, row_bytes, n_in, until - row,
                base, 0, y + y_row * first + y_matrix * matrix + 4 * row, y_stride, stop, 0, 1, scratch,
            )  # fmt: skip

    return body


def matvec(room: str, takes: str, passes: int) -> Body:
    """The kernel y[row] = bias[matrix] + w[matrix] . x[row] for rows in the flat form; `bias` may be 0."""
    product = rows.matvec(room, passes) if takes == "quantized" else float_products.matvec(room, takes)
    return cut_runs_of(product, takes, flat_bytes(256, passes))


def matmul(room: str, takes: str, passes: int) -> Body:
    """The same for tiles of rows: a run begins with a tile."""
    product = panels.matmul(room, passes) if takes == "quantized" else float_products.matmul(room, takes)
    return runs_of(product, takes, PLACES * record_bytes(1, passes))
