"""Every point of a model has the activations that exact arithmetic computes there, and can be changed."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models
from numpy.typing import NDArray

import localinfer
from localinfer import naive
from localinfer.gguf.reader import open_gguf
from localinfer.graph.points import READ_ONLY, kind
from localinfer.model import Model

Floats = NDArray[np.floating]
BATCH, N = 24, 40  # tokens of a batch, and of all: a state has a row for each batch
EXACT = {
    "ctx_size": 128, "ubatch_size": BATCH, "threads": 1, "precision": "high", "cache_type_k": "f32",
    "cache_type_v": "f32",
}  # fmt: skip
# Dense, with biases, norms of heads and rows, post-norms, parallel branches, latent attention, attention sinks, experts
# of all kinds, all recurrent layers, several residual streams.
MODELS = [
    "command-r", "deepseek2", "falcon-h1", "gemma2", "gemma3n", "gemma4", "gemma4-experts", "gpt-oss", "gpt2",
    "granitehybrid-experts", "lfm2", "llama3", "llama4", "mamba", "nemotron_h_moe", "olmo2", "phi3", "qwen2moe",
    "qwen35", "rwkv7",
]  # fmt: skip
PATCHED = ["deepseek2", "gemma2", "gpt2", "lfm2", "llama3", "mamba", "qwen2moe", "qwen35", "rwkv7"]
WITH_STATES = [
    "arwkv7", "falcon-h1", "falcon-mamba", "granitehybrid", "granitehybrid-experts", "lfm2", "lfm2moe", "mamba",
    "mamba2", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "qwen4exp", "rwkv6", "rwkv6qwen2",
    "rwkv7",
]  # fmt: skip


def others() -> list[str]:
    """Return a model of each architecture that MODELS lacks."""
    models = {reference_models.architecture(name): name for name in reversed(reference_models.NAMES)}
    covered = {reference_models.architecture(name) for name in MODELS}
    return sorted(name for architecture, name in models.items() if architecture not in covered)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the F32 file of a reference model, created once."""
    folder = tmp_path_factory.mktemp("models")

    def made(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            checkpoints.as_type(reference_models.checkpoint(name, folder), path, "F32")
        return path

    return made


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[tuple[Model, naive.Model]]:
    """Yield the model and the oracle."""
    oracle = naive.Model(open_gguf(path))
    oracle.ctx_size, oracle.batch_ends = 128, [BATCH]
    with localinfer.load(path, **EXACT) as model:
        yield model, oracle


def tolerance(expected: Floats) -> float:
    """Return the allowed difference: 1e-4 of the largest value."""
    finite = np.abs(expected[np.isfinite(expected)])
    return float(1e-4 * max(1.0, finite.max(initial=0.0)))


@pytest.mark.parametrize("name", [*MODELS, *others()])
def test_activations_are_those_of_the_oracle(name: str, file: Callable[[str], Path]) -> None:
    ids = reference_models.expected(name).ids[:N]
    with loaded(file(name)) as (model, oracle):
        points, without = model.points(), model.logits(ids).copy()
        with model.capture("*") as trace:
            logits = model.logits(ids)
        builder = naive.run_builder(oracle, ids)
        expected = builder.points | {"logits": naive.forward(oracle, ids)}
        missing = {each for each in expected if each in points} ^ set(points)
        assert not missing
        for point, description in points.items():
            assert trace[point].dtype == (np.int32 if kind(point) == "ffn_expert_ids" else np.float32)
            n_rows = 2 if kind(point).endswith("_state") else N
            assert trace[point].shape == (
                (description.shape[0], N, N) if kind(point) == "attn_weights" else (n_rows, *description.shape)
            )
            np.testing.assert_allclose(
                trace[point], expected[point], rtol=0, atol=tolerance(expected[point]), err_msg=point
            )
        assert trace.tokens == ids
        np.testing.assert_allclose(logits, without, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", PATCHED)
def test_changed_activations_have_the_effect_of_the_oracle(name: str, file: Callable[[str], Path]) -> None:
    """Steering at each kind of point changes the logits as it does in exact arithmetic."""
    ids, dice = reference_models.expected(name).ids[:N], np.random.default_rng(1)
    with loaded(file(name)) as (model, oracle):
        without = model.logits(ids).copy()
        last_of_kind = {kind(point): point for point in model.points() if "blk.1." in point or "blk." not in point}
        for point in last_of_kind.values():
            if kind(point) in (*READ_ONLY, "logits", "ffn_expert_weights"):
                continue
            direction = dice.standard_normal(model.points()[point].shape)
            oracle.patches = {point: lambda values, direction=direction: 0.5 * values + direction}
            with model.patch({point: lambda values, info, direction=direction: 0.5 * values + direction}):
                logits = model.logits(ids)
            expected = naive.forward(oracle, ids)
            np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-4 * np.abs(expected).max(), err_msg=point)
            assert np.abs(logits - without).max() > 1e-2, point
        np.testing.assert_array_equal(model.logits(ids), without)


@pytest.mark.parametrize("name", WITH_STATES)
def test_changed_states_change_later_batches_only(name: str, file: Callable[[str], Path]) -> None:
    ids, dice = reference_models.expected(name).ids[:N], np.random.default_rng(1)
    with loaded(file(name)) as (model, oracle):
        without, names = model.logits(ids).copy(), [each for each in model.points() if each.endswith("_state")]
        assert names
        directions = {each: dice.standard_normal(model.points()[each].shape) for each in names}
        oracle.patches = {
            each: lambda values, change=change: 0.5 * values + change for each, change in directions.items()
        }
        patches = {"*_state": lambda values, info: 0.5 * values + directions[info.name]}
        with model.patch(patches), model.capture("*_state") as trace:
            logits = model.logits(ids)
        builder = naive.run_builder(oracle, ids)
        for each in names:
            assert trace.positions(each).tolist() == [BATCH - 1, N - 1]
            expected = builder.points[each]
            np.testing.assert_allclose(trace[each], expected, rtol=0, atol=tolerance(expected), err_msg=each)
        expected = builder.output.compute_logits()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-4 * np.abs(expected).max())
        np.testing.assert_array_equal(logits[:BATCH], without[:BATCH])
        assert np.abs(logits[BATCH:] - without[BATCH:]).max() > 1e-2


@pytest.mark.parametrize("name", ["bert", "modern-bert", "t5encoder"])
def test_activations_of_an_encoder_are_those_of_the_oracle(name: str, file: Callable[[str], Path]) -> None:
    ids = reference_models.expected(name).ids[:N]
    with loaded(file(name)) as (model, oracle):
        with model.capture("*") as trace:
            model.embed_tokens([ids, ids[:7]])
        expected = naive.run_builder(oracle, ids).points
        for point in model.points():
            actual = trace[point][:, :N, :N] if kind(point) == "attn_weights" else trace[point][:N]
            np.testing.assert_allclose(actual, expected[point], rtol=0, atol=tolerance(expected[point]), err_msg=point)
        weights = next(trace[point] for point in model.points() if kind(point) == "attn_weights")
        np.testing.assert_allclose(weights.sum(axis=2), 1, rtol=0, atol=1e-6)
        assert not weights[:, :N, N:].any()
        assert trace.tokens == [*ids, *ids[:7]]
        assert trace.positions().tolist() == [*range(N), *range(7)]
        np.testing.assert_array_equal(model.attention(ids).weights[0], weights[:, :N, :N])
