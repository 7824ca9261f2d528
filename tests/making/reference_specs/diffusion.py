"""Diffusion language models, and their configurations as published checkpoints have them."""

from collections.abc import Callable
from typing import Any

from diffusion_model import RND1, DreamModel, LLaDAModelLM, LLaDAMoEModelLM
from reference_spec import Spec, renaming, sizes
from transformers import PreTrainedConfig

PARTS = {  # of LLaDA's names -> the torch model's
    "model.transformer.ff_out": "lm_head", "model.transformer.wte": "model.embed_tokens",
    "model.transformer.ln_f": "model.norm", "model.transformer.blocks": "model.layers",
    ".q_proj": ".self_attn.q_proj", ".k_proj": ".self_attn.k_proj", ".v_proj": ".self_attn.v_proj",
    ".attn_out": ".self_attn.o_proj", ".attn_norm": ".input_layernorm", ".ff_norm": ".post_attention_layernorm",
    ".ff_proj": ".mlp.gate_proj", ".up_proj": ".mlp.up_proj", ".ff_out": ".mlp.down_proj",
}  # fmt: skip
KEYS = {  # of LLaDA -> those of `sizes`
    "d_model": "hidden_size", "mlp_hidden_size": "intermediate_size", "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "vocab_size": "vocab_size",
    "max_sequence_length": "max_position_embeddings", "rope_theta": "rope_theta", "rms_norm_eps": "rms_norm_eps",
    "weight_tying": "tie_word_embeddings", "include_qkv_bias": "qkv_bias", "eos_token_id": "eos_token_id",
    "bos_token_id": "bos_token_id", "mask_token_id": "mask_token_id", "architectures": "architectures",
}  # fmt: skip
OWN = ("qkv_bias", "head_norms", "expert_size")  # keys of the torch model
MASK = {"mask_token_id": 257}
MOE = {"num_experts": 12, "num_experts_per_tok": 4, "expert_size": 64, "rms_norm_eps": 1e-5}
NARROW_MOE = {"num_experts": 8, "num_experts_per_tok": 3, "expert_size": 96, "rms_norm_eps": 1e-6}
DENSE = {"num_experts": 0, "head_norms": False, "rms_norm_eps": 1e-6, **MASK}


def without_own(config: dict[str, Any], model_type: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in OWN} | {"model_type": model_type} | more


def llada(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[own] for key, own in KEYS.items()} | {
        "model_type": "llada", "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "rope": True,
        "alibi": False, "attention_layer_norm": False, "input_emb_norm": False, "scale_logits": False,
        "include_bias": False, "multi_query_attention": None,
    }  # fmt: skip


def dream(config: dict[str, Any]) -> dict[str, Any]:
    dense = {key: value for key, value in config.items() if key != "num_experts"}
    return without_own(dense, "Dream", hidden_act="silu", use_sliding_window=False, rope_scaling=None)


def llada_moe(config: dict[str, Any]) -> dict[str, Any]:
    size = config["expert_size"]
    fields = without_own(
        config, "llada", hidden_act="silu", expert_intermediate_size=size, qk_layernorm=True, norm_topk_prob=None,
        moe_router_score_function="softmax", moe_router_enable_expert_bias=False, routed_scaling_factor=1,
        shared_expert_intermediate_size=None, partial_rotary_factor=1, rope_scaling=None,
    )  # fmt: skip
    return {key: value for key, value in fields.items() if key != "intermediate_size"}


def rnd1(config: dict[str, Any]) -> dict[str, Any]:
    return without_own(
        config, "rnd1", hidden_act="silu", moe_intermediate_size=config["expert_size"], mlp_only_layers=[],
        decoder_sparse_step=1, attention_bias=False, rope_scaling=None, use_sliding_window=False,
    )  # fmt: skip


def of_llada(config: PreTrainedConfig) -> Spec:
    return Spec(
        architecture="llada", model=LLaDAModelLM, config=config, written=llada,
        **renaming({own: published for published, own in reversed(PARTS.items())}),
    )  # fmt: skip


def of_experts(model: Any, written: Callable[[dict[str, Any]], dict[str, Any]], of_model: Any, **more: Any) -> Spec:
    """Return the description of a mixture of experts. RND1 normalizes the weights of the chosen experts."""
    config = PreTrainedConfig(**of_model, **more, qkv_bias=False, head_norms=True, norm_topk_prob=model is RND1)
    return Spec(architecture="rnd1" if model is RND1 else "llada-moe", model=model, written=written, config=config)


MODELS = {
    "llada": of_llada(PreTrainedConfig(**sizes(3, 3) | DENSE, head_dim=32, qkv_bias=False, rope_theta=500_000.0)),
    "llada-gqa": of_llada(
        PreTrainedConfig(
            **sizes(4, 2, 3, hidden_size=64) | DENSE, head_dim=16, qkv_bias=True, rope_theta=10_000.0,
        )
    ),
    "dream": Spec(
        architecture="dream", model=DreamModel, written=dream,
        config=PreTrainedConfig(**sizes(6, 2) | DENSE, head_dim=16, qkv_bias=True, rope_theta=1e6),
    ),
    "dream-wide": Spec(
        architecture="dream", model=DreamModel, written=dream,
        config=PreTrainedConfig(
            **sizes(2, 1, 3, hidden_size=128) | DENSE, head_dim=64, qkv_bias=True,
            rope_theta=1e4,
        ),
    ),
    "llada-moe": of_experts(LLaDAMoEModelLM, llada_moe, sizes(3, 3), head_dim=32, **MOE, rope_theta=50_000.0),
    "llada-moe-gqa": of_experts(
        LLaDAMoEModelLM, llada_moe, sizes(4, 2, 3, hidden_size=64), head_dim=16, **NARROW_MOE, rope_theta=1e4,
    ),
    "rnd1": of_experts(RND1, rnd1, sizes(4, 2) | MASK, head_dim=32, **MOE, rope_theta=1e6),
    "rnd1-narrow": of_experts(
        RND1, rnd1, sizes(3, 1, 3, hidden_size=64) | MASK, head_dim=32, **NARROW_MOE, rope_theta=1e5,
    ),
}  # fmt: skip
