"""Functions of kernels are compiled once for the same code with the same captured constants."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from quant.jit.compiler import gc_paused
from quant.jit.functions import cached_by_code


@dataclass(frozen=True)
class Pair:
    first: float
    second: float


def adder(constant: Any) -> Callable[[int], Any]:
    def add(x: int) -> Any:
        return x + constant

    return add


def with_default(constant: int) -> Callable[..., int]:
    def add(x: int, y: int = constant) -> int:
        return x + y

    return add


def test_same_code_and_constants_share_one_result() -> None:
    created: list[Any] = []
    make = cached_by_code(lambda function: created.append(function) or function)
    assert make(adder(1)) is make(adder(1))
    assert len(created) == 1


@pytest.mark.parametrize(
    ("constant", "other"), [(1, 2), (1, True), (1, 1.0), (0.0, -0.0), ((1,), (1.0,)), (Pair(1, 2), Pair(1, 2.0))]
)
def test_equal_constants_of_another_type_are_distinct(constant: Any, other: Any) -> None:
    make = cached_by_code(lambda function: function)
    assert make(adder(constant)) is make(adder(constant))
    assert make(adder(constant)) is not make(adder(other))
    assert make(with_default(1))(1) != make(with_default(2))(1)


def test_same_code_in_another_module_is_distinct() -> None:
    make, source = cached_by_code(lambda function: function), "def f():\n    return number\n"
    scopes: list[dict[str, Any]] = [{"number": 1}, {"number": 2}]
    for scope in scopes:
        exec(source, scope)
    assert [make(scope["f"])() for scope in scopes] == [1, 2]


def test_unhashable_constants_are_allowed() -> None:
    make = cached_by_code(lambda function: function)
    assert make(adder([1])) is not make(adder([1]))


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_restored_after_compiling(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with gc_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
