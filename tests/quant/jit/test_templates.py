"""Variants of a kernel that are filled in from one template compute what each of them would compute."""

import kernels
import numpy as np
import pytest

from quant.jit import templates
from quant.jit.linking import PLACEHOLDER_PATTERN


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
    kernels.compiled.cache_clear()


def count_templates(name: str) -> int:
    """Return the number of templates that were made of functions with a name."""
    return sum(len(made) for key, made in templates.TEMPLATES.items() if key[0].co_name == name)


def test_variants_share_a_template() -> None:
    variants = [(1, 2), (3, 4), (4, 3), (5, 5), (-6, 1 << 40)]
    assert [result("weighted", first=first, second=second) for first, second in variants] == [2, 4, 3, 5, 1 << 40]
    assert count_templates("body") == count_templates("entry") == 1


def test_a_removed_branch_is_of_the_captured_value() -> None:
    assert result("branched", "f8", is_float=1) == 1.5
    assert result("branched", is_float=0) == 2
    assert result("branched", "f8", is_float=1) == 1.5


def test_captured_functions_replace_each_other() -> None:
    expected = {"dq": 19, "qd": 17, "qD": 16, "Dq": 19, "dD": 93, "Dd": 93, "dd": 94, "DD": 92, "qq": 4}
    assert {order: result("chained", order=order) for order in expected} == expected
    assert count_templates("body") == 2  # the other one calls the same function twice
    assert count_templates("difference") == count_templates("quotient") == 1


def test_a_callee_with_another_type_of_result_is_another_template() -> None:
    assert result("typed", "f8", is_float=1) == 1.5
    assert result("typed", is_float=0) == 2
    assert count_templates("body") == 2


def test_an_index_of_a_tuple_is_not_replaced() -> None:
    assert result("indexed", number=0) == 7
    assert result("indexed", "f8", number=1) == 0.5
    assert result("indexed", number=0) == 7


def test_placeholder_notices_that_it_is_read() -> None:
    for read in (bool, int, hash, lambda each: each == 3, lambda each: each + 1, lambda each: [0, 1, 2, 3][each]):
        place = templates.Placeholder(2, 3)
        assert read(place) is not None
        assert place.is_read == (read is not hash)


def test_placeholder_is_written_without_being_read() -> None:
    place = templates.Placeholder(2, -3)
    found = PLACEHOLDER_PATTERN.fullmatch(f"{place}")
    assert found
    assert found.groups() == ("2", "-3")
    assert not place.is_read


@pytest.mark.parametrize("value", [True, 1.0, 1 << 63, "1", None, np.int64(1)])
def test_only_integers_of_64_bits_are_replaced(value: object) -> None:
    assert not templates.is_replaceable(value)
    assert templates.is_replaceable(5)
