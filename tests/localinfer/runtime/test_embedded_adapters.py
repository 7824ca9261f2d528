"""Control tokens switch the adapters of a model on: the same ones for the same tokens, however they were evaluated."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference_models
from numpy.typing import NDArray

from localinfer import naive
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.graph.properties.embedded_adapters import EmbeddedAdapters, read_embedded_adapters
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.naive.embedded_adapters import active_adapters
from localinfer.options import Options
from localinfer.runtime import snapshot
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import build_graph

IDS = reference_models.expected("graniteswitch").ids  # whose control tokens are 121, 58, 44, 44, 170 and 44
AT = [i for i, id in enumerate(IDS) if id in (44, 58, 121, 170)]
OPTIONS = Options(ctx_size=128, threads=1, parallel=2)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GGUF:
    folder = tmp_path_factory.mktemp("model")
    path = folder / "model.gguf"
    checkpoints.as_type(reference_models.checkpoint("graniteswitch", folder), path, "Q8_0")
    return open_gguf(path)


@pytest.fixture(scope="module")
def engine(file: GGUF) -> Iterator[Engine]:
    with closing(Engine.load(file, OPTIONS)) as running:
        yield running


@pytest.fixture(scope="module")
def expected(engine: Engine) -> NDArray[np.float32]:
    """The logits after each token of the text, evaluated in one batch."""
    return engine.logits(IDS)


@pytest.mark.parametrize("gain", [0.7, 1.6, 15.0, 100.0])
def test_the_active_adapter_is_what_a_head_of_attention_finds(gain: float) -> None:
    adapters = np.zeros(40, np.int32)
    adapters[[3, 8, 9, 20]] = 1, 2, 3, 4
    embedded = EmbeddedAdapters(4, 8, gain, adapters, np.arange(40, dtype=np.int32))
    ids = np.random.default_rng(0).integers(0, 40, 200).astype(np.int32)
    expected, found = active_adapters(embedded, ids.astype(np.int64)), embedded.active(ids, (), 0)
    np.testing.assert_array_equal(found, expected)
    assert len(set(expected.tolist())) > 1
    for first in (1, 50, 150):
        earlier = [number for number in adapters[ids[:first]].tolist() if number]
        np.testing.assert_array_equal(embedded.active(ids[first:], earlier, first), expected[first:])


def test_media_rows_are_no_control_tokens() -> None:
    embedded = EmbeddedAdapters(1, 8, 15.0, np.array([1, 0], np.int32), np.arange(2, dtype=np.int32))
    np.testing.assert_array_equal(embedded.active(np.array([-7, 1, 0, -1], np.int32), (), 0), [0, 0, 1, 1])


@pytest.mark.parametrize("size", [1, 3, 4, 41, 60])
def test_batches_may_end_before_and_after_control_tokens(
    size: int, engine: Engine, expected: NDArray[np.float32]
) -> None:
    engine.reset()
    found = [engine.logits(IDS[at : at + size]) for at in range(0, len(IDS), size)]
    np.testing.assert_array_equal(np.concatenate(found), expected)


def test_sequences_can_rewind_to_before_control_tokens(engine: Engine, expected: NDArray[np.float32]) -> None:
    for border in (AT[0], AT[0] + 1, AT[2], AT[-1] + 1):
        engine.reset()
        engine.logits([*IDS[:border], 58, 170, 7, 44, 44])
        assert engine.rewind(border) == border
        np.testing.assert_array_equal(engine.logits(IDS[border:]), expected[border:])


def test_draft_tokens_may_be_control_tokens(engine: Engine, expected: NDArray[np.float32]) -> None:
    engine.reset()
    engine.logits(IDS[:40])
    engine.evaluate_draft([IDS[40], 121, 58])
    engine.rewind(41)
    np.testing.assert_array_equal(engine.evaluate_draft(IDS[41:44]), expected[41:44])


def test_other_sequences_reuse_a_prefix_with_control_tokens(engine: Engine, expected: NDArray[np.float32]) -> None:
    engine.reset()
    engine.logits(IDS[:70])
    other = engine.sequence.fork()
    other.rewind(60)
    assert other.control_tokens.positions == tuple(AT[:4])
    assert engine.sequence.control_tokens.positions == tuple(AT[:4])
    other.commit([44])
    assert (other.control_tokens.positions, other.control_tokens.adapters) == ((*AT[:4], 60), (4, 2, 1, 1, 1))
    other.reset()
    np.testing.assert_array_equal(engine.logits(IDS[70:]), expected[70:])


def test_snapshots_continue_with_their_adapters(
    file: GGUF, engine: Engine, expected: NDArray[np.float32], tmp_path: Path
) -> None:
    engine.reset()
    engine.logits(IDS[:70])
    snapshot.save(tmp_path / "snapshot", engine, OPTIONS)
    with closing(Engine.load(file, OPTIONS)) as other:
        snapshot.load(tmp_path / "snapshot", other, OPTIONS)
        np.testing.assert_array_equal(other.logits(IDS[70:]), expected[70:])


def test_texts_of_one_batch_have_their_own_adapters(engine: Engine, file: GGUF) -> None:
    texts = [IDS[:30], IDS[50:60]]
    runner = engine.runner
    runner.evaluate_packed(engine.sequence, [np.array(text, np.int32) for text in texts])
    found = runner.hidden_states(np.arange(40, dtype=np.int32)).copy()
    engine.reset()
    model = naive.Model(file)
    states = np.concatenate([naive.final_hidden_states(model, text) for text in texts])
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(states, axis=1)
    assert ((found * states).sum(axis=1) / lengths).min() > 0.995  # activations are rounded to 8 bits


def test_adapters_of_other_matrices_are_refused(file: GGUF) -> None:
    """The output layer is not computed for all tokens."""
    output = {f"token_embd.lora_{kind}": file.tensors[f"blk.0.ffn_down.lora_{kind}"] for kind in "ab"}
    with pytest.raises(UnsupportedError, match=r"token_embd\.lora_a: adapters of this matrix are not supported"):
        build_graph(replace(file, tensors={**file.tensors, **output}), OPTIONS)
    missing = {name: tensor for name, tensor in file.tensors.items() if name != "blk.1.attn_k.lora_b"}
    with pytest.raises(LocalInferError, match=r"blk\.1\.attn_k\.lora_b: is missing"):
        build_graph(replace(file, tensors=missing), OPTIONS)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("token_ids_activate", [44, 58, 44, 121], "token_ids_activate: has a token for two adapters"),
        ("token_ids_activate", [44, 58, 264, 121], "token_ids_activate: has a token that is out of range, 0 to 263"),
        ("token_ids_substitute", [44, 58, -1, 121], "token_ids_substitute: has a token that is out of range"),
        ("token_ids_substitute", [44, 58], "token_ids_substitute: must be an array of 4 tokens"),
        ("count", 5000, "adapters.count: is 5000; it must be 1 to 4096"),
        ("router_gain", -1.0, "adapters.router_gain: .*-1"),
    ],
)
def test_invalid_adapters_are_refused(key: str, value: Any, problem: str, file: GGUF) -> None:
    given = np.array(value, np.int32) if isinstance(value, list) else value
    changed = replace(file, metadata={**file.metadata, f"graniteswitch.adapters.{key}": given})
    with pytest.raises(LocalInferError, match=problem):
        read_embedded_adapters(Hyperparameters(changed), 264)
