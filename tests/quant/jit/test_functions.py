"""Functions of kernels are made once: for the same code with the same constants inside."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from quant.jit.compiler import uncollected
from quant.jit.functions import once


def adder(constant: Any) -> Callable[[int], Any]:
    def add(x: int) -> Any:
        return x + constant

    return add


def with_default(constant: int) -> Callable[..., int]:
    def add(x: int, y: int = constant) -> int:
        return x + y

    return add


def test_the_same_code_and_constants_are_made_once() -> None:
    made: list[Any] = []
    make = once(lambda function: made.append(function) or function)
    assert make(adder(1)) is make(adder(1))
    assert len(made) == 1


@pytest.mark.parametrize("other", [2, True, 1.0])
def test_another_constant_is_another_function_even_if_equal(other: Any) -> None:
    make = once(lambda function: function)
    assert make(adder(1)) is not make(adder(other))
    assert make(with_default(1))(1) != make(with_default(2))(1)


def test_the_same_lines_in_another_module_are_another_function() -> None:
    make, source = once(lambda function: function), "def f():\n    return number\n"
    scopes: list[dict[str, Any]] = [{"number": 1}, {"number": 2}]
    for scope in scopes:
        exec(source, scope)
    assert [make(scope["f"])() for scope in scopes] == [1, 2]


def test_constants_that_cannot_be_compared_are_no_error() -> None:
    make = once(lambda function: function)
    assert make(adder([1])) is not make(adder([1]))


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_looked_for_again_after_compiling(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
