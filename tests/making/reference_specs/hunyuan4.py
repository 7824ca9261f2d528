"""Hunyuan 4: sparse latent attention with gates and sinks, and several residual streams."""

import re
from typing import Any

import numpy as np
from reference_spec import Spec, Tensors, renaming, rope, sizes
from transformers import HYV4Config

ROTATED = 32  # values of a head
NAMES = {  # of transformers -> published ones
    "self_attn.sinks": "self_attn.learnable_sink_param", "self_attn.gate_proj": "self_attn.linear_gate",
    ".attn_hc.": ".hc_attn_layer.hc_pre.hc_", ".ffn_hc.": ".hc_mlp_layer.hc_pre.hc_", "hc_head.hc_": "hc_head.hc_head_",
}  # fmt: skip
RENAMED = renaming(NAMES)
ROTATED_TENSORS = re.compile(r".*self_attn\.(q_b_proj|kv_a_proj_with_mqa|indexer\.(wq_b|wk|k_norm))\..*")


def with_halves(tensors: Tensors, sizes: dict[str, int]) -> Tensors:
    """Return the tensors of transformers' model. Published checkpoints rotate adjacent values, the last ones of a head,
    as their authors' code for vLLM and llama.cpp does; transformers rotates halves."""
    computed = RENAMED["computed"](tensors)
    for name, values in computed.items():
        if match := ROTATED_TENSORS.fullmatch(name):
            heads = values.reshape(-1, sizes.get(match[1], len(values)), *values.shape[1:])
            rotated = heads[:, -ROTATED:]
            halves = np.concatenate([rotated[:, ::2], rotated[:, 1::2]], axis=1)
            computed[name] = np.concatenate([heads[:, :-ROTATED], halves], axis=1).reshape(values.shape)
    return computed


def published(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as published files have it."""
    return config | {"first_k_dense_replace": config["mlp_layer_types"].count("dense")}


def model(heads: int, layers: list[str], **more: Any) -> Spec:
    """Return a model whose layers have an indexer of their own ("full") or none ("shared"); the first one is dense."""
    config = HYV4Config(
        **sizes(heads, heads, len(layers)) | rope(theta=1e6) | more, qk_nope_head_dim=32, qk_rope_head_dim=ROTATED,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, indexer_types=layers,
    )  # fmt: skip
    sizes_of_heads = {"q_b_proj": 32 + ROTATED, "indexer.wq_b": config.index_head_dim}
    return Spec(
        architecture="hy_v4", shapes=RENAMED["shapes"], written=published, config=config,
        computed=lambda tensors: with_halves(tensors, sizes_of_heads),
    )


MODELS = {
    "hy_v4": model(
        3, ["full", "shared", "full"], kv_lora_rank=32, q_lora_rank=64, v_head_dim=32, hc_mult=2, swiglu_limit=0.5,
        index_n_heads=8, index_head_dim=64, index_topk=16,
    ),
    "hy_v4-wide": model(
        2, ["full", "full", "shared"], kv_lora_rank=64, q_lora_rank=32, v_head_dim=64, hc_mult=4, hc_magnitude=1.5,
        swiglu_limit=1.0, hc_eps=1e-3, index_n_heads=10, index_head_dim=96, index_topk=11, n_shared_experts=2,
    ),
}
