"""The self-test: it passes on this machine, and fails if kernels compute something else."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localinfer.errors import LocalInferError
from localinfer.evaluation import self_test
from localinfer.evaluation.self_test import MAX_ERROR, SelfTest

MAPS = Path("/proc/self/maps")  # of Linux


@pytest.fixture(scope="module")
def passing() -> Iterator[SelfTest]:
    with self_test.self_test() as test:
        yield test


@pytest.fixture
def test(passing: SelfTest) -> SelfTest:
    """A copy that a test may change."""
    copy = SelfTest.__new__(SelfTest)
    copy.__dict__ |= passing.__dict__
    return copy


def test_this_machine_passes(test: SelfTest) -> None:
    assert 0 < test.error() < MAX_ERROR / 2
    assert test.has_equal_bits()
    found = test.run_in_new_process()
    assert (found.n_compiled, found.is_equal) == (0, True)


@pytest.mark.parametrize("name", ["blk.0.attn_q", "blk.1.attn_v", "blk.0.ffn_up", "blk.1.ffn_down"])
def test_wrong_rows_are_found(test: SelfTest, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a kernel returned 0 for one row of sixteen."""
    tensor = test.file.tensors[f"{name}.weight"]
    data = tensor.data.copy().reshape(tensor.shape[0], -1)
    data[::16] = 0
    monkeypatch.setitem(test.file.tensors, tensor.name, replace(tensor, data=data.reshape(-1)))
    assert test.error() > MAX_ERROR


def test_different_bits_are_found(test: SelfTest) -> None:
    logits = test.tested.logits.copy()
    logits[-1, -1] = np.nextafter(logits[-1, -1], np.float32(np.inf))
    test.tested = replace(test.tested, logits=logits)
    assert not test.has_equal_bits()
    assert not test.run_in_new_process().is_equal


def test_error_of_the_new_process_is_one_line(test: SelfTest) -> None:
    test.path = test.path.with_name("gone.gguf")
    with pytest.raises(LocalInferError, match=r"^a new process ended with code 1: .*gone\.gguf.*$"):
        test.run_in_new_process()


def test_the_model_is_unmapped_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows deletes no file that is mapped."""
    mapped = list[bool]()
    delete = tempfile.TemporaryDirectory.cleanup

    def record(folder: "tempfile.TemporaryDirectory[str]") -> None:
        mapped.append(str(test.path) in (MAPS.read_text() if MAPS.exists() else ""))
        delete(folder)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", record)
    with self_test.self_test() as test:
        assert test.path.exists()
    assert mapped == [False]
    assert not os.path.lexists(test.path.parent)
