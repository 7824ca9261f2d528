"""Kimi Delta Attention (KDA) in most layers, latent attention in the others: Kimi Linear and Ling 3.0."""

import re
from typing import Any

from reference_spec import Shapes, Spec, rope, sizes
from transformers import BailingHybridConfig, KimiLinearConfig

MLA = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
EXPERTS = {"num_experts": 8, "num_experts_per_token": 3, "moe_intermediate_size": 64, "num_shared_experts": 1}


# Keys that transformers adds to config.json, beside those of published files.
ADDED = ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim")
PUBLISHED_NAMES = {
    "moe_renormalize": "norm_topk_prob", "num_expert_group": "n_group", "model_max_length": "max_position_embeddings",
    "num_experts_per_token": "num_experts_per_tok",
}  # fmt: skip


def published(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as published files have it, of Kimi Linear or Ling 3.0."""
    dense = config["mlp_layer_types"].count("dense")
    of_file = {key: value for key, value in config.items() if key not in ADDED} | {"first_k_dense_replace": dense}
    if config["model_type"] == "kimi_linear":
        return of_file | {"moe_router_activation_func": "sigmoid", "moe_layer_freq": 1, "mla_use_nope": True}
    return {PUBLISHED_NAMES.get(key, key): value for key, value in of_file.items()} | {
        "architectures": ["BailingMoeV3ForCausalLM"], "no_kda_lora": True, "score_function": "sigmoid",
        "head_dim": config["linear_head_dim"],  # as transformers writes it, it is that of attention
        "gated_attention_proj_granularity_type": "head_wise",
        "moe_shared_expert_intermediate_size": config["num_shared_experts"] * config["moe_intermediate_size"],
        "num_nextn_predict_layers": 0,
    }  # fmt: skip


def dense_names(shapes: Shapes) -> Shapes:
    """Return the shapes with published names of dense layers, which transformers saves by the names of experts."""
    dense = re.compile(r"block_sparse_moe\.(?=(gate|up|down)_proj)")
    return {dense.sub("mlp.", name): shape for name, shape in shapes.items()}


def kimi_linear(heads: int, layers: int, attention: list[int], size: int, width: int) -> dict[str, object]:
    """Return the sizes, the layers with attention, counted from 1, and those of KDA, as published files have them."""
    others = [number for number in range(1, layers + 1) if number not in attention]
    kda = {
        "full_attn_layers": attention, "kda_layers": others, "head_dim": size, "num_heads": heads,
        "short_conv_kernel_size": width,
    }  # fmt: skip
    return sizes(heads, heads, layers, linear_attn_config=kda)


MODELS = {
    "kimi-linear": Spec(
        architecture="kimi-linear", saved=True, written=published, shapes=dense_names,
        config=KimiLinearConfig(**kimi_linear(3, 3, [3], 32, 4) | MLA | EXPERTS),
    ),
    "kimi-linear-wide": Spec(
        architecture="kimi-linear", saved=True, written=published, shapes=dense_names,
        config=KimiLinearConfig(
            **kimi_linear(2, 4, [2, 4], 64, 3) | MLA | {"v_head_dim": 64, "kv_lora_rank": 64} | EXPERTS
            | {"num_shared_experts": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 2},
        ),
    ),
    "bailingmoe3": Spec(
        architecture="bailingmoe3", saved=True, written=published,
        config=BailingHybridConfig(
            **sizes(3, 3, 3, head_dim=32) | MLA | EXPERTS | rope(theta=6e6), layer_group_size=3,
            first_k_dense_replace=1, num_expert_group=4, topk_group=2,
        ),
    ),
    "bailingmoe3-narrow": Spec(
        architecture="bailingmoe3", saved=True, written=published,
        config=BailingHybridConfig(
            **sizes(2, 2, 4, head_dim=64) | MLA | {"v_head_dim": 64, "q_lora_rank": 64} | EXPERTS | rope(),
            layer_group_size=2, first_k_dense_replace=2, num_expert_group=2, topk_group=1, kda_lower_bound=-3.0,
            short_conv_kernel_size=3,
        ),
    ),
}  # fmt: skip
