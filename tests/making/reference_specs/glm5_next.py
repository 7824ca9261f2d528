"""GLM-5-Next: Kimi Delta Attention, sparse attention to runs of positions, and several residual streams."""

import re
from typing import Any

from reference_spec import Shapes, Spec, sizes
from transformers import Glm5NextConfig, Glm5NextForConditionalGeneration

VISION = {
    "hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 1, "image_size": 28, "out_hidden_size": 16,
    "projection_intermediate_size": 16,
}  # fmt: skip
LINEAR = {  # published keys -> those of transformers
    "head_dim": "linear_head_dim", "num_heads": "linear_num_heads", "short_conv_kernel_size": "linear_conv_kernel_dim",
    "gate_lower_bound": "linear_lower_bound",
}  # fmt: skip


def published(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as published files have it."""
    text = config["text_config"]
    kda = {key: text[name] for key, name in LINEAR.items()} | {"safe_gate": text["linear_lower_bound"] is not None}
    of_file = {key: value for key, value in text.items() if key not in {*LINEAR.values(), "mlp_layer_types"}} | {
        "linear_attn_config": kda, "first_k_dense_replace": text["mlp_layer_types"].count("dense"), "mhc": True,
        "mla_use_nope": True, "scoring_func": "sigmoid",
    }  # fmt: skip
    return config | {"text_config": of_file}


def of_text(shapes: Shapes) -> Shapes:
    """Return the shapes of the text model."""
    vision = re.compile(r"(model\.)?visual\.")
    return {name: shape for name, shape in shapes.items() if not vision.match(name)}


def model(heads: int, attention: dict[int, str], layers: int, **more: Any) -> Spec:
    """Return a model with latent attention in some layers, which have an indexer ("full") or not ("shared")."""
    text = sizes(heads, heads, layers) | more | {
        "layer_types": ["indexed_attention" if n in attention else "linear_attention" for n in range(layers)],
        "indexer_types": [attention.get(n, "full") for n in range(layers)], "linear_num_heads": heads,
        "n_routed_experts": 8, "moe_intermediate_size": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 0,
    }  # fmt: skip
    dense = text.pop("dense")
    text["mlp_layer_types"] = ["dense"] * dense + ["sparse"] * (layers - dense)
    return Spec(
        architecture="glm5-next", saved=True, written=published, shapes=of_text, model=Glm5NextForConditionalGeneration,
        config=Glm5NextConfig(text_config=text, vision_config=VISION),
    )


MODELS = {
    "glm5-next": model(
        3, {1: "full", 2: "shared"}, 3, dense=1, num_experts_per_tok=3, kv_lora_rank=32, q_lora_rank=64, v_head_dim=32,
        linear_head_dim=32, hc_sinkhorn_iters=4, swiglu_limit=1.0, index_n_heads=12, index_head_dim=64, index_kpool=4,
        index_topk=16,
    ),
    "glm5-next-wide": model(
        2, {0: "full", 2: "full"}, 4, dense=2, num_experts_per_tok=2, kv_lora_rank=64, q_lora_rank=32, v_head_dim=64,
        linear_head_dim=64, linear_conv_kernel_dim=3, linear_lower_bound=None, hc_eps=1e-3, hc_sinkhorn_iters=2,
        swiglu_limit=0.5, index_n_heads=11, index_head_dim=32, index_kpool=7, index_topk=21, n_shared_experts=2,
        routed_scaling_factor=1.5, n_group=2, topk_group=1,
    ),
}
