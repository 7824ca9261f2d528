"""Variants of a kernel that are filled in from one template compute what each of them would compute."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernels
import numpy as np
import pytest
from locations import CHECKOUT
from numba import types

from quant.jit import templates
from quant.jit.kernel import make_kernel


def result(name: str, type: str = "i8", **constants: int | str) -> float:
    """Return the number that a kernel stores in chunk 0."""
    y = np.zeros(1, type)
    kernels.run(f"template_kernels:{name}", {"y": y}, **constants)
    return float(y[0])


@pytest.fixture(autouse=True)
def without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile every kernel, and forget the templates of other tests."""
    monkeypatch.setattr(kernels.paths, "jit_dir", lambda: None)
    monkeypatch.setattr(kernels.loader, "LOADED_KERNELS", {})
    monkeypatch.setattr(templates, "TEMPLATES", {})
    monkeypatch.setattr(templates, "READ_CELLS", {})
    kernels.compiled.cache_clear()


def count_templates(name: str) -> int:
    """Return the number of templates that were made of functions with a name."""
    return sum(len(made) for key, made in templates.TEMPLATES.items() if key[0][0].co_name == name)


def test_variants_share_a_template() -> None:
    variants = [(1, 2), (3, 4), (4, 3), (5, 5), (-6, 1 << 40)]
    assert [result("weighted", first=first, second=second) for first, second in variants] == [2, 4, 3, 5, 1 << 40]
    assert count_templates("body") == count_templates("entry") == 1


def test_an_integer_that_numba_reads_costs_one_attempt_per_code(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, compile_core = [0], templates.FunctionCompiler._compile_core

    def counted(compiler: Any, *args: Any) -> Any:
        attempts[0] += compiler.py_func.__name__ == "body"
        return compile_core(compiler, *args)

    monkeypatch.setattr(templates.FunctionCompiler, "_compile_core", counted)
    assert (result("branched", "f8", is_float=1), attempts[0]) == (1.5, 2)
    assert (result("branched", is_float=0), attempts[0]) == (2, 3)
    assert count_templates("body") == 2


def test_a_removed_branch_is_of_the_captured_value() -> None:
    assert result("branched", "f8", is_float=1) == 1.5
    assert result("branched", is_float=0) == 2
    assert result("branched", "f8", is_float=1) == 1.5


def test_captured_functions_replace_each_other() -> None:
    expected = {"dq": 19, "qd": 17, "qD": 16, "Dq": 19, "dD": 93, "Dd": 93, "dd": 94, "DD": 92, "qq": 4}
    assert {order: result("chained", order=order) for order in expected} == expected
    assert count_templates("body") == count_templates("difference") == count_templates("quotient") == 1


@pytest.mark.filterwarnings("ignore:First-class function type feature is experimental")
@pytest.mark.parametrize("how", ["argument", "tuple", "choice"])
def test_functions_that_are_not_just_called_are_not_replaced(how: str) -> None:
    expected = {"d": 97, "D": 96, "q": 20}
    assert {order: result("passed", order=order, how=how) for order in expected} == expected
    assert count_templates("body" if how == "argument" else f"body_of_{how}") == 3


def test_a_callee_with_another_type_of_result_is_another_template() -> None:
    assert result("typed", "f8", is_float=1) == 1.5
    assert result("typed", is_float=0) == 2
    assert count_templates("body") == 2


def test_an_index_of_a_tuple_is_not_replaced() -> None:
    assert result("indexed", number=0) == 7
    assert result("indexed", "f8", number=1) == 0.5
    assert result("indexed", number=0) == 7


def test_reading_a_captured_integer_is_recorded() -> None:
    reads: list[Callable[[Any], Any]] = [
        bool,
        int,
        float,
        lambda each: each == 3,
        lambda each: each < 4,
        lambda each: each + 1,
        lambda each: 1 - each,
        lambda each: [0, 1, 2, 3][each],
        lambda each: each.bit_length(),
    ]
    for read in reads:
        captured = templates.CapturedInteger(2, 3)
        assert read(captured) == read(3)
        assert captured.is_read


def test_writing_a_captured_integer_is_not_reading() -> None:
    captured = templates.CapturedInteger(2, -3)
    found = templates.HOLE_PATTERN.fullmatch(f"{captured}")
    assert found
    assert found.groups() == ("integer", "2")
    assert not captured.is_read


@pytest.mark.parametrize("value", [True, 1.0, 1 << 63, -(1 << 63) - 1, "1", None, np.int64(1)])
def test_only_integers_of_64_bits_are_replaced(value: object) -> None:
    assert not templates.is_replaceable_integer(value)
    assert templates.is_replaceable_integer(5)


@pytest.mark.parametrize(
    ("value", "other"),
    [(1, True), (1, 1.0), (0.0, -0.0), ((1, 2), (1.0, 2)), ((0.0,), (-0.0,)), (types.int8, types.uint8)],
)
def test_values_that_code_can_distinguish_have_different_keys(value: object, other: object) -> None:
    assert templates.exact_key(value) != templates.exact_key(other)
    assert templates.exact_key(value) == templates.exact_key(value)
    assert hash(templates.exact_key(value)) == hash(templates.exact_key(value))


def test_machine_code_is_that_of_numba_alone(tmp_path: Path) -> None:
    """Compare kernels that share templates: encoders whose search takes a function as an argument, and constants."""
    rows = ("x", "importance", "n", "y", "row_bytes", "rows")
    path = "quant.encoders.encoder_kernel:encode_rows"
    encoders = [{"format_module": name, "effort": "normal"} for name in ("iq4_nl", "iq4_xs")]
    compared = [
        *(make_kernel(path, rows, frozenset(), constants) for constants in encoders),
        *(make_kernel("template_kernels:weighted", ("y",), frozenset(), {"first": n, "second": 1}) for n in (2, 3)),
    ]
    listed = tmp_path / "kernels.jsonl"
    listed.write_text("".join(f"{kernel.to_json()}\n" for kernel in compared), encoding="utf-8")
    script = CHECKOUT / "tests" / "benchmarks" / "checks" / "kernel_templates.py"
    check = subprocess.run([sys.executable, str(script), str(listed)], capture_output=True, text=True, timeout=600)
    assert check.returncode == 0, check.stdout + check.stderr[-1000:]
    assert "4 of 4 kernels have the same code" in check.stdout
