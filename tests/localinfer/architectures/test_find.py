"""Finding the architecture of a file: built-in, from a package, or the user's own; and the errors."""

import sys
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from tiny import tiny_llama

from localinfer import architectures
from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine

ARCHITECTURE = '''
"""Llama, written out."""

from localinfer.graph.attention import qkv
from localinfer.graph.builder import AttentionSpec
from localinfer.graph.feed_forward import feed_forward


def build(g):
    n, attention = g.embedding_length, AttentionSpec(g.rope("interleaved"))
    x = g.embeddings.tokens()
    for blk in g.blocks():
        q, k, v = qkv(g, g.norm(x, f"{blk}attn_norm"), blk)
        a = g.attend(blk, q, k, v, attention)
        g.matmul(a, f"{blk}attn_output", n, add_to=x)
        f = feed_forward(g, g.norm(x, f"{blk}ffn_norm"), blk, "silu")
        g.matmul(f, f"{blk}ffn_down", n, add_to=x)
    g.output.logits(x)
'''
NEW = {"general.architecture": "tinyllm"} | {
    f"tinyllm.{key}": value
    for key, value in {
        "block_count": 2, "context_length": 64, "embedding_length": 256, "feed_forward_length": 512,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    }.items()
}  # fmt: skip


def logits(path: Path, architecture: str = "") -> np.ndarray:
    engine = Engine.load(open_gguf(path), Options(threads=1, ctx_size=64, architecture=architecture))
    actual = engine.logits([5, 6, 7])
    engine.close()
    return actual


def test_a_user_file_defines_the_architecture(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(ARCHITECTURE)
    model, new = tiny_llama(tmp_path / "m.gguf"), tiny_llama(tmp_path / "new.gguf", **NEW)
    np.testing.assert_array_equal(logits(model, str(own)), logits(model))
    np.testing.assert_array_equal(logits(new, str(own)), logits(model))


def test_a_package_can_add_an_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "tiny_llm_architecture-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-llm-architecture\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[localinfer.architectures]\ntinyllm = tiny_llm_architecture:build\n")
    (tmp_path / "tiny_llm_architecture.py").write_text(ARCHITECTURE)
    monkeypatch.syspath_prepend(tmp_path)
    model, new = tiny_llama(tmp_path / "m.gguf"), tiny_llama(tmp_path / "new.gguf", **NEW)
    np.testing.assert_array_equal(logits(new), logits(model))
    sys.modules.pop("tiny_llm_architecture")


def test_the_error_suggests_the_closest_architecture(tmp_path: Path) -> None:
    f = open_gguf(tiny_llama(tmp_path / "m.gguf", **{"general.architecture": "mistral"}))
    with pytest.raises(UnsupportedError, match=r"'mistral' is not supported \(did you mean mistral4\?\)"):
        architectures.find_build_function(f)


WRONG = {
    "no such file": (None, UsageError, "No such file"),
    "no Python": ("build(", LocalInferError, "SyntaxError"),
    "code that raises": ("1 / 0", LocalInferError, "ZeroDivisionError"),
    "no build function": ("x = 1", UsageError, "has no function `build`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_user_files_are_errors(case: str, tmp_path: Path) -> None:
    text, kind, message = WRONG[case]
    if text is not None:
        (tmp_path / "own.py").write_text(text)
    with pytest.raises(kind, match=message):
        architectures.from_file(tmp_path / "own.py")


@pytest.mark.parametrize("name", architectures.known())
def test_each_architecture_is_a_short_file(name: str) -> None:
    path = Path(architectures.__file__).with_name(f"{name}.py")
    assert len(path.read_text().splitlines()) <= 70  # Gemma 4 has four kinds of models
    assert callable(architectures.from_file(path))


def test_the_median_file_is_short() -> None:
    folder = Path(architectures.__file__).parent
    assert median(len((folder / f"{name}.py").read_text().splitlines()) for name in architectures.known()) <= 20
