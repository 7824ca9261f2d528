"""Hunyuan 4, which has DeepSeek's sparse latent attention, and several residual streams."""

from dataclasses import replace

import numpy as np

from localinfer.conversion.architectures.common import FUSED_EXPERT_SHAPES, FUSED_EXPERTS, SPLIT_EXPERTS
from localinfer.conversion.architectures.deepseek import DEEPSEEK32, sparse_hparams, sparse_layers, sparse_metadata
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.metadata import expert_metadata
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyper_connections import MAX_STREAMS

PARTS = ("fn", "base", "scale")  # tensors of the weights of streams
BRANCHES = {"hc_attn_layer": "hc_attn", "hc_mlp_layer": "hc_ffn"}
STREAMS = tuple(f"{name}_{part}" for name in BRANCHES.values() for part in PARTS)
HEAD = tuple(f"output_hc_{part}" for part in PARTS)


def read_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of attention, of its indexer and of the residual streams."""
    hp, count = expert_metadata.dense_first_hparams(config, hp), config.positive_int("hc_mult", MAX_STREAMS)
    sparse = sparse_hparams(config, hp)
    streams = {"n_streams": count, "n_logits": 2 * count, "n_scales": 2, "n_all_streams": count * hp.n_embd}
    return replace(sparse, sizes={**sparse.sizes, **streams})


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of attention, experts and residual streams. A single group of experts is not stated."""
    config.get("indexer_types", list)  # without it, the layers with an indexer are unknown
    fields = sparse_metadata(config, hp) | {
        "leading_dense_block_count": Field.uint32(hp.n_dense_layers),
        "hyper_connection.count": Field.uint32(hp.sizes["n_streams"]),
        "hyper_connection.epsilon": Field.float32(config.positive_float("hc_eps")),
        "hyper_connection.magnitude": Field.float32(config.positive_float("hc_magnitude")),
    }
    limit = config.get("swiglu_limit", float, 0.0)
    if limit > 0:
        fields["swiglu_clamp_exp"] = Field.numbers(np.full(hp.n_layer + hp.n_mtp_layers, limit, np.float32))
    groups = ("expert_group_count", "expert_group_used_count")
    is_grouped = any(config.get(key, int, 1) != 1 for key in ("n_group", "topk_group"))
    return {key: field for key, field in fields.items() if is_grouped or key not in groups}


def layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return which layers have no indexer, because they attend to the positions that an earlier one chose. MTP layers
    have one, and one residual stream."""
    of_mtp_layers = [LayerOverrides({}, frozenset(STREAMS))] * hp.n_mtp_layers
    return (*sparse_layers(config, hp)[: hp.n_layer], *of_mtp_layers)


HY_V4 = replace(
    DEEPSEEK32,
    name="hy_v4",
    layer_tensors=(*DEEPSEEK32.layer_tensors, "attn_sinks", "attn_gate", *STREAMS),
    model_tensors=HEAD,
    fused_sources={**DEEPSEEK32.fused_sources, **FUSED_EXPERTS},
    reorder={**DEEPSEEK32.reorder, **SPLIT_EXPERTS},
    shapes={
        **DEEPSEEK32.shapes,
        **FUSED_EXPERT_SHAPES,
        **{f"{name}_fn": ("n_logits", "n_all_streams") for name in BRANCHES.values()},
        **{f"{name}_base": ("n_logits",) for name in BRANCHES.values()},
        **{f"{name}_scale": ("n_scales",) for name in BRANCHES.values()},
        **dict(zip(HEAD, (("n_streams", "n_all_streams"), ("n_streams",), ("one",)), strict=True)),
    },
    tensor_names={
        **DEEPSEEK32.tensor_names,
        "self_attn.learnable_sink_param": "attn_sinks.weight",
        "self_attn.linear_gate": "attn_gate",
        "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "mlp.experts.down_proj": "ffn_down_exps.weight",
        **{f"{old}.hc_pre.hc_{part}": f"{new}_{part}.weight" for old, new in BRANCHES.items() for part in PARTS},
        **{f"model.hc_head.hc_head_{part}": f"output_hc_{part}.weight" for part in PARTS},
    },
    int_keys={"n_shared_experts": "expert_shared_count"},
    read_hparams=read_hparams,
    metadata=metadata,
    layer_overrides=layers,
    required_values={"scoring_func": "sigmoid", "attention_bias": False},
    defaults={"scoring_func": "sigmoid", "first_k_dense_replace": 0},
)  # fmt: skip
BY_CLASS = {"HYV4ForCausalLM": HY_V4}
