"""Encoders compute what `transformers` computes: tiny checkpoints, converted, and the states of their tokens."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import checkpoints
import naive
import numpy as np
import proofs
import pytest

from localinfer.embedding.pooling import pooled
from localinfer.engine.engine import Engine
from localinfer.errors import Unsupported
from localinfer.files.gguf import open_gguf
from localinfer.options import Options

EXACT = Options(threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")
FAST = Options(threads=2)

each = pytest.mark.parametrize("name", proofs.ENCODERS)


@contextlib.contextmanager
def engine(name: str, folder: Path, type: str, options: Options) -> Iterator[Engine]:
    path = checkpoints.as_type(proofs.checkpoint(name, folder), folder / "model.gguf", type)
    with contextlib.closing(Engine(open_gguf(path), options)) as running:
        yield running


def states(running: Engine, *texts: list[int]) -> list[np.ndarray]:
    """Of each text's tokens."""
    running.pack([np.array(text, np.int32) for text in texts])
    found = running.program.states(np.arange(sum(map(len, texts)), dtype=np.int32)).copy()
    return np.split(found, np.cumsum([len(text) for text in texts])[:-1])


@each
def test_states_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    proof = proofs.expected(name)
    with engine(name, tmp_path, "F32", EXACT) as running:
        oracle = naive.hidden(naive.Model(running.file), proof.ids)[proof.positions]
        found = states(running, proof.ids)[0][proof.positions]
    np.testing.assert_allclose(oracle, proof.logits, rtol=0, atol=1e-4)
    np.testing.assert_allclose(found, proof.logits, rtol=0, atol=1e-3)


@each
def test_texts_in_a_batch_are_as_if_alone(name: str, tmp_path: Path) -> None:
    """To the last bit, wherever they stand, also behind texts that end within a block or a chunk of cells."""
    ids = proofs.expected(name).ids
    texts = [ids[:1], ids[:2], ids[:70], ids[5:75], ids[:3], ids]
    with engine(name, tmp_path, "Q8_0", FAST) as running:
        alone = [states(running, text)[0] for text in texts]
        together = states(running, *texts)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_decoder_takes_texts_together_and_long_ones_in_parts(tmp_path: Path) -> None:
    ids = np.array(proofs.expected("qwen3").ids, np.int32)
    texts = [ids[:9], ids, ids[3:50]]
    folder = tmp_path / "parts"
    folder.mkdir()
    with engine("qwen3", tmp_path, "F32", EXACT) as whole:
        expected = naive.Model(whole.file)
        hidden = [naive.hidden(expected, text.tolist()) for text in texts]
        found = {kind: pooled(whole, texts, kind) for kind in ("mean", "cls", "last")}
        logits = whole.logits(ids[:9]).copy()
    with engine("qwen3", folder, "F32", replace(EXACT, batch_size=16)) as parts:
        again = {kind: pooled(parts, texts, kind) for kind in found}
        np.testing.assert_allclose(parts.logits(ids[:9]), logits, atol=1e-5)
    poolings = {"mean": lambda x: x.mean(axis=0), "cls": lambda x: x[0], "last": lambda x: x[-1]}
    for kind, of in poolings.items():
        np.testing.assert_allclose(found[kind], np.stack([of(x) for x in hidden]), atol=1e-3)
        np.testing.assert_allclose(again[kind], found[kind], atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "gemma-embedding"])
def test_activations_of_an_encoder_are_rounded_finely(name: str, tmp_path: Path) -> None:
    """Unless told otherwise: what is left is what weights in eight bits cost."""
    ids = proofs.expected(name).ids
    furthest = {}
    for precision in ("auto", "fast"):
        folder = tmp_path / precision
        folder.mkdir()
        with engine(name, folder, "Q8_0", Options(threads=1, precision=precision)) as running:
            assert running.program.precision == {"auto": "high"}.get(precision, precision)
            exact = naive.hidden(naive.Model(running.file), ids)
            furthest[precision] = np.abs(states(running, ids)[0] - exact).max()
    assert furthest["auto"] < furthest["fast"] / 4


def test_an_encoder_expects_no_next_token(tmp_path: Path) -> None:
    with engine("bert", tmp_path, "F32", FAST) as running, pytest.raises(Unsupported, match="bert is an encoder"):
        running.evaluate([1, 2])
