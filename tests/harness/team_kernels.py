"""Kernels for `test_team`: ops that notice when they run twice, or before what they need is finished."""

from typing import Any

from numba import int64

from quant.jit.threads import atomic_add, atomic_load, pause
from quant.jit.vectors import load, store
from quant.products.rows import share


def count() -> Any:
    """The kernel that adds 1 to every cell, and counts an error where a cell of the stage before is not 1 ahead."""

    def body(tokens, cells, before, n, errors, part, parts, scratch):
        first, end = share(n, 1, part, parts)
        for i in range(first, end):
            value = load(int64, cells + 8 * i)
            if before and load(int64, before + 8 * (i * 7919 % n)) != value + 1:
                atomic_add(errors, 1)
            store(cells + 8 * i, value + 1)

    return body


def hold() -> Any:
    """The kernel that never ends by itself."""

    def body(tokens, stop, part, parts, scratch):
        while not atomic_load(stop):
            pause()

    return body
