"""Scale pairs: moving random factors between the weights of every pair does not change what the model computes."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models

from localinfer import naive
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.reader import open_gguf
from localinfer.graph.scale_pairs import ScalePair, find_scale_pairs
from localinfer.options import Options
from localinfer.quantization.quantize import make_encoder_factory, quantize
from localinfer.quantization.tensor_scales import tensor_scales
from localinfer.runtime.graph_building import Extensions, build_graph

QKV = "attn_norm > attn_q attn_k attn_v"
VALUES, GATED, FFN = "attn_v > attn_output", "ffn_up > ffn_down", "ffn_norm > ffn_gate ffn_up"
SHARED_EXPERT = "ffn_up_shexp > ffn_down_shexp"
# What each architecture adds: q/k norms; norms after branches and soft-capping; LayerNorm with biases, and branches in
# parallel with the same input; fused tensors; gated units that are not linear in `up`; layers that use the keys and
# values of other layers; experts; layers without a norm or without attention; latent attention.
PAIRS = {
    "llama3": {QKV, VALUES, GATED, FFN},
    "qwen3": {QKV, VALUES, GATED, FFN},
    "gemma2": {QKV, VALUES, GATED, FFN},
    "olmo2": {VALUES, GATED},
    "cohere2": {f"{QKV} ffn_gate ffn_up", VALUES, GATED},
    "phi2": {f"{QKV} ffn_up", VALUES},
    "phi3": {"attn_norm > attn_qkv", "attn_qkv > attn_output", "ffn_norm > ffn_up", GATED},
    "bloom": {"attn_norm > attn_qkv", "attn_qkv > attn_output", "ffn_norm > ffn_up"},
    "gpt-oss": {QKV, VALUES},
    "step35": {f"{QKV} attn_gate", FFN, SHARED_EXPERT},  # some layers limit `up`
    "gemma3n": {GATED, FFN},
    "qwen2moe": {QKV, VALUES, SHARED_EXPERT},
    "deepseek2": {"attn_norm > attn_q_a attn_kv_a_mqa", "attn_q_a_norm > attn_q_b", GATED, FFN, SHARED_EXPERT},
}
FOR_IMAGES = "cogvlm"  # has matrices for rows of images, with the norms of those for text


def found_pairs(path: Path) -> list[ScalePair]:
    return find_scale_pairs(build_graph(open_gguf(path), Options(ctx_size=128, threads=1), Extensions(media=True)))


def label(pair: ScalePair) -> str:
    makers, readers = (rows.name for rows in pair.divided if rows.name.endswith(".weight")), pair.products
    return " > ".join(" ".join(name.split(".")[2] for name in names) for names in (makers, readers))


def labels(pairs: Collection[ScalePair]) -> set[str]:
    return {label(pair) for pair in pairs}


@pytest.mark.parametrize("name", PAIRS)
def test_moved_factors_do_not_change_logits(name: str, tmp_path: Path) -> None:
    path = checkpoints.as_type(reference_models.checkpoint(name, tmp_path), tmp_path / "m.gguf", "F32")
    pairs, random = found_pairs(path), np.random.default_rng(0)
    assert labels(pairs) == PAIRS[name]
    factors = [np.exp(random.normal(0, 0.5, pair.n_factors)).astype(np.float32) for pair in pairs]
    source = from_gguf(path)
    scales = tensor_scales(source.tensors, zip(pairs, factors, strict=True))
    types = {tensor.name: tensor.type for tensor in source.tensors.values()}
    quantize(source, tmp_path / "scaled.gguf", types, encoder_factory=make_encoder_factory("fast", {}), scales=scales)
    ids = reference_models.expected(name).ids[:32]
    expected, actual = (naive.forward(naive.Model(open_gguf(each)), ids) for each in (path, tmp_path / "scaled.gguf"))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_matrices_for_images_have_pairs_of_their_own(tmp_path: Path) -> None:
    path = checkpoints.as_type(reference_models.checkpoint(FOR_IMAGES, tmp_path), tmp_path / "m.gguf", "F32")
    assert labels(found_pairs(path)) == {GATED, "vis_up > vis_down"}


def test_tied_weights_are_left_out(tmp_path: Path) -> None:
    """A norm that two layers share is not a pair of either."""
    path = checkpoints.as_type(reference_models.checkpoint("llama3", tmp_path), tmp_path / "m.gguf", "F32")
    f = open_gguf(path)
    first = f.tensors["blk.0.attn_norm.weight"]
    shared = replace(f, tensors={**f.tensors, "blk.1.attn_norm.weight": first})
    pairs = find_scale_pairs(build_graph(shared, Options(ctx_size=128, threads=1)))
    assert {label(pair) for pair in pairs if pair.block < 2} == PAIRS["llama3"] - {QKV}
