"""Initialization of a product's output with the values that it is added to.

Reading these values in the kernel's row loop instead would carry two more numbers through the innermost loop. With rows
of 576 columns in Q4_1, this made products a third slower.
"""

from numba import float32

from quant.jit.vectors import inline, load, store


@inline
def init_output(base: int, base_stride: int, y: int, y_stride: int, tokens: int, first: int, end: int) -> None:
    """Copy y[token][row] = base[token][row] for rows first .. end, unless `base` is y itself or 0 (none)."""
    if base and base != y:
        for token in range(tokens):
            for row in range(first, end):
                store(y + token * y_stride + 4 * row, load(float32, base + token * base_stride + 4 * row))
