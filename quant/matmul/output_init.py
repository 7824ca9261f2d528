"""Initialization of a product's output with the values that it is added to.

Reading these values in the kernel's row loop instead would carry two more numbers through the innermost loop. With rows
of 576 columns in Q4_1, this made products a third slower.
"""

from typing import Any

from numba import float32

from quant.jit.vectors import inline, load, store


@inline
def init_output(args: Any, first: int, end: int, first_token: int, end_token: int) -> None:
    """Copy y[token][row] = base[token][row] of a `ProductArguments` for rows first .. end - 1 and tokens
    first_token .. end_token - 1, unless `base` is y itself or 0 (none).
    """
    if args.base and args.base != args.y:
        for token in range(first_token, end_token):
            for row in range(first, end):
                store(
                    args.y + token * args.y_stride + 4 * row,
                    load(float32, args.base + token * args.base_stride + 4 * row),
                )
