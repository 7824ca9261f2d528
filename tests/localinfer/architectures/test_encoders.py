"""Encoders compute what `transformers` computes: converted tiny checkpoints and the hidden states of their tokens."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models

from localinfer import naive
from localinfer.embedding.pooling import pool_texts
from localinfer.errors import UnsupportedError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine

EXACT = Options(threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")
FAST = Options(threads=2)

each = pytest.mark.parametrize("name", reference_models.ENCODERS)


@contextlib.contextmanager
def engine(name: str, folder: Path, type: str, options: Options) -> Iterator[Engine]:
    path = checkpoints.as_type(reference_models.checkpoint(name, folder), folder / "model.gguf", type)
    with contextlib.closing(Engine.load(open_gguf(path), options)) as running:
        yield running


def states(running: Engine, *texts: list[int]) -> list[np.ndarray]:
    """Return the hidden states of each text's tokens."""
    running.runner.evaluate_packed(running.sequence, [np.array(text, np.int32) for text in texts])
    actual = running.runner.hidden_states(np.arange(sum(map(len, texts)), dtype=np.int32)).copy()
    return np.split(actual, np.cumsum([len(text) for text in texts])[:-1])


@each
def test_states_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = reference_models.expected(name)
    with engine(name, tmp_path, "F32", EXACT) as running:
        oracle = reference.part(naive.final_hidden_states(naive.Model(running.file), reference.ids))
        actual = reference.part(states(running, reference.ids)[0])
    np.testing.assert_allclose(oracle, reference.logits, rtol=0, atol=1e-4)
    np.testing.assert_allclose(actual, reference.logits, rtol=0, atol=1e-3)


@each
def test_texts_in_a_batch_are_independent(name: str, tmp_path: Path) -> None:
    """The bits are the same wherever a text is in the batch, also after texts that end within a page or a chunk."""
    ids = reference_models.expected(name).ids
    texts = [ids[:1], ids[:2], ids[:70], ids[5:75], ids[:3], ids]
    with engine(name, tmp_path, "Q8_0", FAST) as running:
        alone = [states(running, text)[0] for text in texts]
        batched = states(running, *texts)
    for one, other in zip(alone, batched, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_decoder_packs_texts_and_splits_long_ones(tmp_path: Path) -> None:
    ids = np.array(reference_models.expected("qwen3").ids, np.int32)
    texts = [ids[:9], ids, ids[3:50]]
    folder = tmp_path / "parts"
    folder.mkdir()
    with engine("qwen3", tmp_path, "F32", EXACT) as whole:
        expected = naive.Model(whole.file)
        hidden = [naive.final_hidden_states(expected, text.tolist()) for text in texts]
        actual = {kind: pool_texts(whole, texts, kind) for kind in ("mean", "cls", "last")}
        logits = whole.logits(ids[:9]).copy()
    with engine("qwen3", folder, "F32", replace(EXACT, batch_size=16)) as small_batches:
        again = {kind: pool_texts(small_batches, texts, kind) for kind in actual}
        np.testing.assert_allclose(small_batches.logits(ids[:9]), logits, atol=1e-5)
    poolings = {"mean": lambda x: x.mean(axis=0), "cls": lambda x: x[0], "last": lambda x: x[-1]}
    for kind, of in poolings.items():
        np.testing.assert_allclose(actual[kind], np.stack([of(x) for x in hidden]), atol=1e-3)
        np.testing.assert_allclose(again[kind], actual[kind], atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "gemma-embedding"])
def test_encoders_use_high_precision_by_default(name: str, tmp_path: Path) -> None:
    """By default, the remaining error is that of 8-bit weights."""
    ids = reference_models.expected(name).ids
    furthest = {}
    for precision in ("auto", "fast"):
        folder = tmp_path / precision
        folder.mkdir()
        with engine(name, folder, "Q8_0", Options(threads=1, precision=precision)) as running:
            assert running.compiled_graph.precision == {"auto": "high"}.get(precision, precision)
            exact = naive.final_hidden_states(naive.Model(running.file), ids)
            furthest[precision] = np.abs(states(running, ids)[0] - exact).max()
    assert furthest["auto"] < furthest["fast"] / 4


def test_an_encoder_has_no_logits(tmp_path: Path) -> None:
    with engine("bert", tmp_path, "F32", FAST) as running, pytest.raises(UnsupportedError, match="bert is an encoder"):
        running.evaluate([1, 2])
