"""Options that override metadata when a model runs: the results are llama.cpp's and those of the naive forward pass."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_models
import rope_settings
from tiny import tiny_llama

from localinfer import naive
from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.gguf.overrides import open_overridden
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options, from_keywords, merge
from localinfer.prefix_store.keys import root_digest
from localinfer.runtime import snapshot
from localinfer.runtime.engine import Engine

EXACT = {"ctx_size": 128, "threads": 1, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32"}
ModelFile = Callable[[str], Path]


def options(**keywords: Any) -> Options:
    return merge(from_keywords({**EXACT, **keywords}))


@contextlib.contextmanager
def engine(path: Path, options: Options) -> Iterator[Engine]:
    with contextlib.closing(Engine.load(open_overridden(path, options), options)) as running:
        yield running


@pytest.mark.parametrize("case", rope_settings.CASES)
def test_logits_are_those_of_llama_cpp_and_of_exact_arithmetic(case: str, reference_file: ModelFile) -> None:
    name, keywords = rope_settings.CASES[case]
    ids, chosen = reference_models.expected(name).ids, options(**keywords)
    model = naive.Model(open_overridden(reference_file(name), chosen))
    model.ctx_size = chosen.ctx_size
    exact = naive.forward(model, ids)
    with engine(reference_file(name), chosen) as running:
        actual = running.logits(ids)
    np.testing.assert_allclose(actual, exact, rtol=0, atol=1e-3)
    np.testing.assert_allclose(exact[rope_settings.POSITIONS], rope_settings.expected(case), rtol=0, atol=1e-5)
    unchanged = reference_models.expected(name)
    matters = np.abs(unchanged.part(exact) - unchanged.logits).max() > 0.1
    assert matters == (case != "attention factor of YaRN")  # it counts without extrapolation only, as in llama.cpp


def test_yarn_extends_the_training_context(tmp_path: Path) -> None:
    """As in llama.cpp: to the original context times the factor. Other scaling leaves it as it is."""
    path = tiny_llama(tmp_path / "m.gguf")

    def n_ctx(**keywords: Any) -> object:
        return open_overridden(path, options(**keywords)).metadata["llama.context_length"]

    assert n_ctx(rope_scaling="yarn", rope_scale=4.0) == 2048
    assert n_ctx(rope_scaling="yarn", rope_scale=4.0, yarn_orig_ctx=100) == 400
    assert n_ctx(rope_scale=4.0) == n_ctx(rope_scaling="yarn") == 512


def test_files_without_a_scaling_type_are_scaled_linearly(tmp_path: Path) -> None:
    """As in llama.cpp; "scale_linear" is the key of old files."""
    path, ids = tiny_llama(tmp_path / "m.gguf"), list(range(40))
    with engine(path, options(rope_scale=2.0)) as running:
        scaled = running.logits(ids)
    for key in ("scaling.factor", "scale_linear"):
        other = tiny_llama(tmp_path / f"{key}.gguf", **{f"llama.rope.{key}": 2.0})
        with engine(other, options()) as running:
            np.testing.assert_array_equal(running.logits(ids), scaled)
        np.testing.assert_allclose(naive.forward(naive.Model(open_gguf(other)), ids), scaled, rtol=0, atol=0.05)


def test_a_snapshot_belongs_to_its_overrides(tmp_path: Path) -> None:
    path, saved = tiny_llama(tmp_path / "m.gguf"), tmp_path / "saved"
    plain, based = options(), options(rope_freq_base=5e5)
    with engine(path, based) as running:
        running.evaluate(list(range(40)))
        snapshot.save(saved, running, based)
        other = root_digest(snapshot.snapshot_identity(running, based))
    with engine(path, plain) as running:
        assert root_digest(snapshot.snapshot_identity(running, plain)) != other
        with pytest.raises(LocalInferError, match="was written with other metadata of the model"):
            snapshot.load(saved, running, plain)
    with engine(path, replace(based, mmap=False)) as running:  # is read again into memory
        assert snapshot.load(saved, running, based) == 40


@pytest.mark.parametrize(
    ("keywords", "error", "problem"),
    [
        ({"override_kv": "llama.rope.freq_base=float:-1"}, UsageError, "llama.rope.freq_base: -1.0 is negative"),
        ({"override_kv": "llama.block_count=int:3"}, LocalInferError, "blk.2"),
        ({"override_kv": "llama.block_count=float:2"}, UsageError, "is an integer in this file"),
        ({"override_kv": "tokenizer.ggml.tokens=str:x"}, UsageError, "is an array of strings in this file"),
        ({"override_kv": "llama.rope.freq_bas=float:5"}, UnsupportedError, "freq_bas: 5.0 is not supported"),
        ({"rope_scaling": "yarn", "rope_freq_base": 0.5}, UsageError, "freq_base: is 0.5; YaRN needs "),
        ({"rope_scaling": "none", "rope_scale": 2.0}, UsageError, "rope_scale: has no effect without scaling"),
        ({"rope_scaling": "yarn", "yarn_beta_fast": 0.0}, UsageError, "yarn_beta_fast: is 0.0; it must be above 0"),
        ({"rope_scale": 2.0, "rope_freq_scale": 0.5}, UsageError, "rope_freq_scale: sets the same as rope_scale"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit(
    keywords: dict[str, Any], error: type[Exception], problem: str, tmp_path: Path
) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    with pytest.raises(error, match=re.escape(problem)) as raised:
        Engine.load(open_overridden(path, options(**keywords)), options(**keywords))
    assert type(raised.value) is error


def test_keys_that_nothing_reads_are_accepted(tmp_path: Path) -> None:
    f = open_overridden(tiny_llama(tmp_path / "m.gguf"), options(kv_overrides={"general.note": "a, b=c", "note": 7}))
    assert f.overrides == {"general.note": "a, b=c", "note": 7}
    assert f.metadata["general.note"] == "a, b=c"


@pytest.mark.parametrize("format_name", ["F16", "Q8_0", "Q4_K"])
def test_check_tensors(format_name: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", type=format_name)
    with engine(path, options(check_tensors=True)):
        pass
    tensor = open_gguf(path).tensors["blk.1.ffn_up.weight"]
    content = bytearray(path.read_bytes())
    row_bytes = tensor.nbytes // tensor.shape[0]
    content[tensor.offset + 5 * row_bytes : tensor.offset + 5 * row_bytes + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(content)
    with engine(path, options()):
        pass  # by default, weights are read when they are needed
    with pytest.raises(LocalInferError, match=r"tensor blk\.1\.ffn_up\.weight: value nan at row 5, column 0"):
        Engine.load(open_gguf(path), options(check_tensors=True))
