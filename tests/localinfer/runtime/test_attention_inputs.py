"""Inputs of values, queries and keys as attention uses them, compared with the naive forward pass in float64."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from score_sensitivity import weighted_inputs

from localinfer import naive
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.activations.hooks import HookGroup, SequenceHooks
from localinfer.runtime.attention_inputs import AttentionObserver, common_weights
from localinfer.runtime.engine import Engine
from localinfer.runtime.probe import ActivationProbe

TOKENS = np.random.default_rng(1).integers(5, 200, 40).astype(np.int32)

ReferenceFile = Callable[[str], Path]


def test_common_weights_have_the_mean_product() -> None:
    a = np.tril(np.random.default_rng(0).random((2, 3, 9, 9), np.float32))
    a[..., 4] = 0  # no token attends to this one
    u = common_weights(iter(a)).astype(np.float64)
    np.testing.assert_allclose(u.T @ u, np.einsum("ghij,ghik->jk", a, a) / 6, atol=1e-5)


def test_common_weights_that_are_not_finite() -> None:
    assert np.isnan(common_weights([np.full((1, 2, 2), np.nan, np.float32)])).any()


@pytest.mark.parametrize("options", [{"ctx_policy": "ring"}, {"cache_type_k": "q8_0"}])
def test_values_without_recorded_attention_have_their_own_inputs(
    options: dict[str, Any], reference_file: ReferenceFile
) -> None:
    """A ring buffer and keys without their bias are stored in another form."""
    file = open_gguf(reference_file("qwen2"))
    with closing(Engine.load(file, Options(threads=1, ctx_size=64, batch_size=64, **options))) as engine:
        probe = ActivationProbe(engine, AttentionObserver(engine))
        first = next(probe.block_inputs(0, probe.embed(TOKENS)))
    assert first.names == tuple(f"blk.0.attn_{each}.weight" for each in "qkv")


def test_engine_gets_its_hooks_back(reference_file: ReferenceFile) -> None:
    with closing(Engine.load(open_gguf(reference_file("qwen2")), Options(threads=1, ctx_size=64))) as engine:
        own = SequenceHooks([HookGroup({})])
        engine.set_hooks(own)
        with closing(AttentionObserver(engine)):
            assert engine.sequence.modifiers.hooks is not own
        assert engine.sequence.modifiers.hooks is own


@pytest.mark.parametrize(
    ("name", "matrix", "parts"),
    [
        *(("smollm2", "attn_v", 4), ("smollm2", "attn_v", 1), ("qwen2", "attn_v", 4), ("gemma2", "attn_v", 4)),
        *(("gpt-oss", "attn_v", 4), ("phi3-long", "attn_qkv", 4), ("phi3-long", "attn_qkv", 1)),
    ],
)
def test_averages_have_the_covariance_of_the_naive_forward_pass(
    name: str, matrix: str, parts: int, reference_file: ReferenceFile
) -> None:
    """Every part of the key heads has the covariance of A X, the mean over its query heads."""
    path = reference_file(name)
    points = naive.run_builder(naive.Model(open_gguf(path)), TOKENS.tolist()).points
    options = Options(threads=1, ctx_size=64, batch_size=64, precision="high")
    with closing(Engine.load(open_gguf(path), options)) as engine:
        probe = ActivationProbe(engine, AttentionObserver(engine, max_parts=parts))
        x, actual = probe.embed(TOKENS), []
        for number in range(engine.compiled_graph.model_graph.block_count):
            actual.append([each for each in probe.block_inputs(number, x) if each.rows])
            probe.run_block(number, x)
        heads = engine.compiled_graph.model_graph.attention_heads
    for number, found in enumerate(actual):
        weights, inputs = points[f"blk.{number}.attn_weights"], points[f"blk.{number}.attn_norm"]
        n_parts = min(parts, heads[number].count_kv)
        assert [each.names for each in found] == [(f"blk.{number}.{matrix}.weight",)] * n_parts
        end, values = found[0].weights[0].shape[0], heads[number].count_kv * heads[number].value
        assert [row for each in found for row in each.rows or ()] == list(range(end - values, end))
        for each, group in zip(found, np.split(weights, n_parts), strict=True):
            averages = group @ inputs
            expected = np.einsum("htn,htm->nm", averages, averages) / len(group)
            np.testing.assert_allclose(each.x.T @ each.x, expected, rtol=0.02, atol=0.01 * expected.max())


@pytest.mark.parametrize(("name", "makes_scores"), [("smollm2", True), ("gemma3", True), ("phi3-long", False)])
def test_queries_and_keys_have_inputs_weighted_by_their_effect(
    name: str, makes_scores: bool, reference_file: ReferenceFile
) -> None:
    """A fused matrix has the inputs as they are."""
    path = reference_file(name)
    points = naive.run_builder(naive.Model(open_gguf(path)), TOKENS.tolist()).points
    options = Options(threads=1, ctx_size=64, batch_size=64, precision="high")
    with closing(Engine.load(open_gguf(path), options)) as engine:
        probe = ActivationProbe(engine, AttentionObserver(engine))
        found = {each.names: each.x.copy() for each in probe.block_inputs(0, probe.embed(TOKENS))}
    names = ("blk.0.attn_q.weight",), ("blk.0.attn_k.weight",)
    assert [each in found for each in names] == [makes_scores] * 2
    if not makes_scores:
        return
    for each, expected in zip(names, weighted_inputs(points, "blk.0."), strict=True):
        np.testing.assert_allclose(found[each], expected, rtol=0.05, atol=0.01 * abs(expected).max())
