"""Kimi K3: Kimi Delta Attention or latent attention with gates, attention residuals, and experts of latent vectors."""

from functools import partial
from typing import Any

from kimi_k3_model import KimiK3ForConditionalGeneration
from reference_spec import Shapes, Spec, Tensors, sizes
from transformers import PreTrainedConfig

PREFIX, DECAYS = "language_model.", ".A_log"


def published(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as published files have it, beside that of the encoder of images."""
    outer = {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "vision_config": {}}
    return outer | {"text_config": config | {"model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"]}}


def stored_shapes(shapes: Shapes, padding: int) -> Shapes:
    """Return the shapes with published names. The decay rates of the heads are padded."""
    return {
        PREFIX + name: (shape[0] + padding,) if name.endswith(DECAYS) else shape for name, shape in shapes.items()
    }


def of_model(tensors: Tensors, heads: int) -> Tensors:
    """Return the tensors of the model."""
    return {
        name.removeprefix(PREFIX): values[:heads] if name.endswith(DECAYS) else values
        for name, values in tensors.items()
    }


def model(heads: int, layers: int, attention: list[int], padding: int, **more: Any) -> Spec:
    """Return a model whose layers with latent attention are listed, counted from 1."""
    common = {
        "hidden_act": "situ", "num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 64,
        "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "mla_use_nope": True,
        "mla_use_output_gate": True, "latent_moe_use_norm": True, "moe_layer_freq": 1, "num_expert_group": 1,
        "topk_group": 1, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    size, width, bound = (more.pop(key) for key in ("head_size", "width", "bound"))
    kda = {
        "full_attn_layers": attention, "head_dim": size, "num_heads": heads, "short_conv_kernel_size": width,
        "kda_layers": [number for number in range(1, layers + 1) if number not in attention],
        "gate_lower_bound": bound, "use_full_rank_gate": True,
    }  # fmt: skip
    return Spec(
        architecture="kimi-k3", model=KimiK3ForConditionalGeneration, written=published,
        shapes=partial(stored_shapes, padding=padding), computed=partial(of_model, heads=heads),
        config=PreTrainedConfig(**sizes(heads, heads, layers, linear_attn_config=kda) | common | more),
    )  # fmt: skip


MODELS = {
    "kimi-k3": model(
        3, 5, [2, 5], 0, head_size=32, width=4, bound=-5.0, attn_res_block_size=2, activation_situ_beta=4.0,
        activation_situ_linear_beta=25.0, q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=32,
        v_head_dim=32, routed_expert_hidden_size=64, num_shared_experts=2, routed_scaling_factor=1.0,
        first_k_dense_replace=1,
    ),
    "kimi-k3-wide": model(
        2, 4, [3], 62, head_size=64, width=3, bound=-3.0, attn_res_block_size=3, activation_situ_beta=0.75,
        activation_situ_linear_beta=0.5, q_lora_rank=None, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=32,
        v_head_dim=64, routed_expert_hidden_size=32, num_shared_experts=1, routed_scaling_factor=2.5,
        first_k_dense_replace=2,
    ),
}  # fmt: skip
