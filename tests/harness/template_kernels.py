"""Kernels for `test_templates`: closures of the same code that capture different values."""

from collections.abc import Callable
from typing import Any

from numba import float64, int64

from quant.jit.functions import inline
from quant.jit.vectors import store

Body = Callable[..., None]


def weighted(first: int, second: int) -> Body:
    """Make the kernel that stores chunk_index * first + second."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        store(args.y, int64(chunk_index * first + second))

    return body


def branched(is_float: int) -> Body:
    """Make the kernel that stores 1.5 or 2; numba can compile only one of the branches."""
    value = "no number" if is_float else 2

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        if is_float:
            store(args.y, float64(1.5))
        else:
            store(args.y, int64(value))

    return body


def make_constant(value: float) -> Any:
    @inline
    def constant() -> float:
        return value

    return constant


def make_difference(other: int) -> Any:
    @inline
    def difference(value: int) -> int:
        return value - other

    return difference


def make_quotient(divisor: int) -> Any:
    @inline
    def quotient(value: int) -> int:
        return value // divisor

    return quotient


def chained(order: str) -> Body:
    """Make the kernel that applies functions in order: "d" subtracts 3, "D" subtracts 4, "q" divides by 5."""
    functions = {"d": make_difference(3), "D": make_difference(4), "q": make_quotient(5)}
    first, second = (functions[each] for each in order)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        store(args.y, second(first(100 + chunk_index)))

    return body


def typed(is_float: int) -> Body:
    """Make the kernel that stores a function's result, whose type differs."""
    constant = make_constant(1.5 if is_float else 2)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        store(args.y, constant())

    return body


def indexed(number: int) -> Body:
    """Make the kernel that stores an item of a tuple of different types."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        store(args.y, (int64(7), float64(0.5))[number])

    return body


@inline
def apply(function: Any, value: int) -> int:
    """Return the result of a function that is passed as an argument."""
    return function(value)


@inline
def apply_pair(pair: Any) -> int:
    """Return the result of the function and argument in a tuple."""
    return pair[0](pair[1])


def passed(order: str, how: str) -> Body:
    """Make the kernel that passes a function on: as an argument, in a tuple, or as the result of a choice. See
    `chained`.
    """
    first = {"d": make_difference(3), "D": make_difference(4), "q": make_quotient(5)}[order]
    other = make_quotient(1)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        store(args.y, apply(first, 100 + chunk_index))

    def body_of_tuple(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        store(args.y, apply_pair((first, 100 + chunk_index)))

    def body_of_choice(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        chosen = first if how == "choice" else other
        store(args.y, chosen(100 + chunk_index))

    return {"argument": body, "tuple": body_of_tuple, "choice": body_of_choice}[how]
