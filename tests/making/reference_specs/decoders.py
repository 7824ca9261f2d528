"""Decoders of which transformers has no class, and their configurations as published checkpoints have them."""

from collections.abc import Callable
from typing import Any

from decoder_models import (
    ArcticForCausalLM,
    BailingMoeForCausalLM,
    DeepseekForCausalLM,
    Grok1ForCausalLM,
    JAISLMHeadModel,
    MaincoderForCausalLM,
    MapleForCausalLM,
    PlamoForCausalLM,
    Spark2_5ForCausalLM,
    Step3p5ForCausalLM,
)
from reference_models import N_VOCAB
from reference_spec import SPECIAL_IDS, WINDOW, Spec, layer_types, renaming, rope, sizes
from transformers import LlamaConfig, PreTrainedConfig

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "expert_size": 64, "norm_topk_prob": False}
NARROW = {"num_experts": 5, "num_experts_per_tok": 2, "expert_size": 32, "norm_topk_prob": True}
SHARED = {"num_shared_experts": 2, "rms_norm_eps": 1e-6}
ARCTIC_NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2", ".mlp.": ".block_sparse_moe."}
JAIS = SPECIAL_IDS | {
    "n_positions": 256, "vocab_size": N_VOCAB, "activation_function": "swiglu", "position_embedding_type": "alibi",
    "layer_norm_epsilon": 1e-5, "mup_scale_qk_dot_by_d": True, "scale_attn_weights": True,
}  # fmt: skip
PLAMO_NAMES = {"model.layers.": "model.layers.layers."}
BAILING_NAMES = {"model.embed_tokens": "model.word_embeddings", ".self_attn.": ".attention."}


def changed(names: dict[str, str | None], **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that renames keys of the configuration, or removes those without a new name, and adds more."""
    return lambda config: {names.get(key) or key: value for key, value in config.items() if names.get(key, key)} | more


DEEPSEEK = changed(
    {
        "num_experts": "n_routed_experts", "expert_size": "moe_intermediate_size",
        "num_shared_experts": "n_shared_experts",
    },
    model_type="deepseek", hidden_act="silu", scoring_func="softmax", moe_layer_freq=1, attention_bias=False,
)  # fmt: skip
BAILING = changed(
    {"expert_size": "moe_intermediate_size"}, model_type="bailing_moe", hidden_act="silu", use_qkv_bias=False,
    use_bias=False, norm_head=False, norm_softmax=False,
)  # fmt: skip
MAINCODER = changed({}, model_type="maincoder", hidden_act="silu", attention_bias=False)
PANGU = changed(
    {"attention_bias": "bias", "mlp_bias": None, "pretraining_tp": None}, architectures=["PanguEmbeddedForCausalLM"],
    model_type="PanguEmbedded",
)  # fmt: skip
PLAMO = changed({"max_position_embeddings": None, "rope_theta": None, "head_dim": None}, model_type="plamo")
ARCTIC = changed(
    {
        "num_experts": "num_local_experts", "intermediate_size": None, "expert_size": "intermediate_size",
        "norm_topk_prob": None,
    },
    model_type="arctic",
    moe_layer_frequency=1, parallel_attn_mlp_res=True, use_residual=True, hidden_act="silu",
)  # fmt: skip

MAPLE = changed(
    {"expert_size": "moe_intermediate_size", "intermediate_size": None}, model_type="maple", hidden_act="silu",
    num_shared_experts=0, nope_on_global_attention=True,
)  # fmt: skip
SPARK = changed(
    {}, model_type="spark2_5", hidden_act="gelu", gate_attn_act_mode="sigmoid", headwise_attn_output_gate=True,
)  # fmt: skip
SPARK_NAMES = {"query_key_value": "q_k_v_proj", "self_attn.dense": "self_attn.o_proj"}
GROK_NAMES = {
    ".gate_proj": ".w1", ".up_proj": ".w3", ".down_proj": ".w2", ".mlp.w1": ".mlp.gate_proj",
    ".mlp.w3": ".mlp.up_proj", ".mlp.w2": ".mlp.down_proj",
}  # fmt: skip
STEP = changed(
    {
        "expert_size": "moe_intermediate_size", "bases": "rope_theta", "scaling": "rope_scaling",
        "num_key_value_heads": None,
    },
    model_type="step3p5", moe_router_activation="sigmoid", use_moe_router_bias=True, use_head_wise_attn_gate=True,
    use_qk_norm=True, norm_expert_weight=True,
)  # fmt: skip
STEP_NAMES = {f"moe.{each}_proj": f"moe.{each}_proj.weight" for each in ("gate", "up", "down")}
FULL_FIRST = {
    "sliding_window": WINDOW, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 8.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def grok(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of published checkpoints, with the keys that the fixtures leave out."""
    own = {"attn_output_multiplier": 0.25, "output_multiplier_scale": 0.5 if config["residual_moe"] else 0.75}
    names = {"num_experts": "num_local_experts", "expert_size": "moe_intermediate_size", "norm_topk_prob": None}
    return changed(names, model_type="grok-1", hidden_act="gelu", **own)(config)


def jais(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of published checkpoints, with the key of the output that the fixtures leave out."""
    alpha = 1.5 if config["n_embd"] == 96 else 2.0
    return changed({"num_hidden_layers": None}, model_type="jais", mup_output_alpha=alpha)(config)


MODELS = {
    "deepseek": Spec(
        architecture="deepseek", model=DeepseekForCausalLM, written=DEEPSEEK,
        config=PreTrainedConfig(**sizes(3, 3, 3), **EXPERTS, **SHARED, first_k_dense_replace=1, rope_theta=1e4),
    ),
    "deepseek-narrow": Spec(
        architecture="deepseek", model=DeepseekForCausalLM, written=DEEPSEEK,
        config=PreTrainedConfig(
            **sizes(4, 2, hidden_size=64) | NARROW | SHARED | {"norm_topk_prob": False, "num_shared_experts": 1},
            first_k_dense_replace=0, rope_theta=1e5,
        ),
    ),
    "bailingmoe": Spec(
        architecture="bailingmoe", model=BailingMoeForCausalLM, written=BAILING,
        config=PreTrainedConfig(
            **sizes(3, 1, head_dim=64), **NARROW, **SHARED, first_k_dense_replace=0, rope_theta=6e5,
        ),
        **renaming(BAILING_NAMES),
    ),
    "bailingmoe-unnormed": Spec(
        architecture="bailingmoe", model=BailingMoeForCausalLM, written=BAILING,
        config=PreTrainedConfig(
            **sizes(4, 2, 3, hidden_size=64), **EXPERTS, **SHARED, first_k_dense_replace=0, rope_theta=1e4,
        ),
        **renaming(BAILING_NAMES),
    ),
    "maincoder": Spec(
        architecture="maincoder", model=MaincoderForCausalLM, written=MAINCODER,
        config=PreTrainedConfig(**sizes(3, 1, head_dim=64), rms_norm_eps=1e-5, rope_theta=1e6),
    ),
    "maincoder-mha": Spec(
        architecture="maincoder", model=MaincoderForCausalLM, written=MAINCODER,
        config=PreTrainedConfig(**sizes(4, 4, 3, hidden_size=64), rms_norm_eps=1e-6, rope_theta=1e4),
    ),
    "pangu-embedded": Spec(
        architecture="pangu-embedded", written=PANGU,
        config=LlamaConfig(**sizes(3, 1), **rope(theta=4e6), attention_bias=True),
    ),
    "pangu-embedded-tied": Spec(
        architecture="pangu-embedded", written=PANGU,
        config=LlamaConfig(
            **sizes(4, 4, 3, hidden_size=64) | {"tie_word_embeddings": True}, **rope(), attention_bias=True,
        ),
    ),
    "plamo": Spec(
        architecture="plamo", model=PlamoForCausalLM, written=PLAMO, **renaming(PLAMO_NAMES),
        config=PreTrainedConfig(**sizes(6, 3), n_shared_head=2, rms_norm_eps=1e-6, rope_theta=1e4),
    ),
    "plamo-narrow": Spec(
        architecture="plamo", model=PlamoForCausalLM, written=PLAMO, **renaming(PLAMO_NAMES),
        config=PreTrainedConfig(
            **sizes(8, 2, 3, hidden_size=64), n_shared_head=4, rms_norm_eps=1e-6, rope_theta=1e4,
        ),
    ),
    "jais": Spec(
        architecture="jais", model=JAISLMHeadModel, written=jais,
        config=PreTrainedConfig(
            **JAIS, n_embd=96, n_head=3, n_layer=2, num_hidden_layers=2, n_inner=160, mup_embeddings_scale=2.5,
            mup_output_alpha=1.5, mup_width_scale=0.25, tie_word_embeddings=False,
        ),
    ),
    "jais-narrow": Spec(
        architecture="jais", model=JAISLMHeadModel, written=jais,
        config=PreTrainedConfig(
            **JAIS, n_embd=64, n_head=4, n_layer=3, num_hidden_layers=3, n_inner=96, mup_embeddings_scale=4.0,
            mup_output_alpha=2.0, mup_width_scale=0.5, tie_word_embeddings=False,
        ),
    ),
    "arctic": Spec(
        architecture="arctic", model=ArcticForCausalLM, written=ARCTIC, **renaming(ARCTIC_NAMES),
        config=PreTrainedConfig(**sizes(3, 1), **NARROW, rms_norm_eps=1e-5, rope_theta=1e4),
    ),
    "arctic-wide": Spec(
        architecture="arctic", model=ArcticForCausalLM, written=ARCTIC, **renaming(ARCTIC_NAMES),
        config=PreTrainedConfig(
            **sizes(2, 2, 3, hidden_size=64), **EXPERTS | {"norm_topk_prob": True}, rms_norm_eps=1e-6, rope_theta=1e6,
        ),
    ),
    "maple": Spec(
        architecture="maple", model=MapleForCausalLM, written=MAPLE,
        config=PreTrainedConfig(
            **sizes(3, 1, 4, head_dim=32), **layer_types(4, 4), **NARROW, rms_norm_eps=1e-6, rope_theta=1e4,
            partial_rotary_factor=0.5,
        ),
    ),
    "maple-narrow": Spec(
        architecture="maple", model=MapleForCausalLM, written=MAPLE,
        config=PreTrainedConfig(
            **sizes(4, 2, 3, hidden_size=64, head_dim=32), **layer_types(3, 2), **EXPERTS | {"norm_topk_prob": True},
            rms_norm_eps=1e-5, rope_theta=1e6, partial_rotary_factor=1.0,
        ),
    ),
    "spark2_5": Spec(
        architecture="spark2_5", model=Spark2_5ForCausalLM, written=SPARK, **renaming(SPARK_NAMES),
        config=PreTrainedConfig(
            **sizes(3, 1, 4, head_dim=32), **layer_types(4, 4), rms_norm_eps=1e-6, rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
            },
        ),
    ),
    "spark2_5-narrow": Spec(
        architecture="spark2_5", model=Spark2_5ForCausalLM, written=SPARK, **renaming(SPARK_NAMES),
        config=PreTrainedConfig(
            **sizes(4, 2, 3, hidden_size=64, head_dim=16), **layer_types(3, 2), rms_norm_eps=1e-5, rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
            },
        ),
    ),
    "grok": Spec(
        architecture="grok", model=Grok1ForCausalLM, written=grok, **renaming(GROK_NAMES),
        config=PreTrainedConfig(
            **sizes(3, 1), **NARROW, rms_norm_eps=1e-5, rope_theta=1e4, attn_logit_softcapping=30.0,
            router_logit_softcapping=30.0, embedding_multiplier_scale=5.0, attn_output_multiplier=0.25,
            output_multiplier_scale=0.75, residual_moe=False,
        ),
    ),
    "grok-residual": Spec(
        architecture="grok", model=Grok1ForCausalLM, written=grok, **renaming(GROK_NAMES),
        config=PreTrainedConfig(
            **sizes(4, 2, 3, hidden_size=64), **EXPERTS | {"norm_topk_prob": True}, rms_norm_eps=1e-6, rope_theta=1e6,
            attn_logit_softcapping=20.0, router_logit_softcapping=5.0, final_logit_softcapping=10.0,
            embedding_multiplier_scale=3.0, attn_output_multiplier=0.25, output_multiplier_scale=0.5, residual_moe=True,
        ),
    ),
    "step35": Spec(
        architecture="step35", model=Step3p5ForCausalLM, written=STEP, norm=0.0, **renaming(STEP_NAMES),
        config=PreTrainedConfig(
            **sizes(2, 1, 3, head_dim=32), **FULL_FIRST, expert_size=64, moe_num_experts=8, moe_top_k=3,
            share_expert_dim=64, moe_router_scaling_factor=1.5, moe_layers_enum="1,2", num_attention_groups=1,
            attention_other_setting={"num_attention_heads": 4, "num_attention_groups": 2}, rms_norm_eps=1e-5,
            bases=[5e6, 1e4, 1e4], partial_rotary_factors=[0.5, 1.0, 1.0], swiglu_limits=[0.0, 0.0, 0.25],
            swiglu_limits_shared=[0.25, 0.0, 0.5], scaling=None,
        ),
    ),
    "step35-scaled": Spec(
        architecture="step35", model=Step3p5ForCausalLM, written=STEP, norm=0.0, **renaming(STEP_NAMES),
        config=PreTrainedConfig(
            **sizes(4, 2, 3, hidden_size=64, head_dim=16), **FULL_FIRST, expert_size=32, moe_num_experts=5, moe_top_k=2,
            share_expert_dim=96, moe_router_scaling_factor=2.0, moe_layers_enum="0,1,2",
            num_attention_groups=2, attention_other_setting={"num_attention_heads": 6, "num_attention_groups": 2},
            rms_norm_eps=1e-6, bases=[1e5, 1e4, 1e4], partial_rotary_factors=[0.5, 1.0, 1.0],
            swiglu_limits=[0.5, 0.0, 0.0], swiglu_limits_shared=[0.0, 0.125, 0.0], scaling=LLAMA3,
        ),
    ),
}  # fmt: skip
