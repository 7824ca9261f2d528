"""Mixture-of-experts architectures that belong to no family module."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXPERT_GROUPS,
    EXPERTS,
    FUSED_QKV,
    GATED_FFN,
    HEAD_NORMS,
    INTERLEAVED_ROPE,
    POST_NORMS,
    PRE_NORMS,
    SEPARATE_QKV,
    SHARED_EXPERTS,
    W123,
    biases,
)
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.metadata import attention_metadata, expert_metadata, layer_overrides
from localinfer.conversion.tensor_formats import reorder
from localinfer.errors import UnsupportedError

MIXTRAL = Architecture(
    name="llama",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *EXPERTS),
    reorder=INTERLEAVED_ROPE,
    tensor_names={f"block_sparse_moe.experts.{old}": new for old, new in zip(W123, EXPERTS[1:], strict=True)},
    metadata=expert_metadata.experts,
    may_have_window=True,
)
MINIMAX_M2 = Architecture(
    name="minimax-m2",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *HEAD_NORMS, *EXPERTS, "exp_probs_b.bias"),
    shapes={"attn_q_norm": ("n_q",), "attn_k_norm": ("n_kv",)},
    tensor_names={**MIXTRAL.tensor_names, "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias"},
    has_partial_rope=True,
    key_aliases={"moe_intermediate_size": "intermediate_size"},
    metadata=expert_metadata.sigmoid_experts,
    required_values={"scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer"},
)
LLAMA4 = Architecture(
    name="llama4",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS),
    dense_tensors=GATED_FFN,
    fused_sources=dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps"),
    reorder={
        "ffn_gate_exps": reorder.first_columns,
        "ffn_up_exps": reorder.last_columns,
        "ffn_down_exps": reorder.transpose,
    },
    tensor_names={"feed_forward.experts.gate_up_proj": "ffn_gate_up_exps.weight"},
    key_aliases={"intermediate_size": "intermediate_size_mlp", "moe_intermediate_size": "intermediate_size"},
    read_hparams=attention_metadata.llama4_hparams,
    metadata=attention_metadata.chunked_attention,
    required_values={"attention_bias": False},
    defaults={"first_k_dense_replace": 0},
)
OLMOE = Architecture(
    name="olmoe",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *HEAD_NORMS, *EXPERTS),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    shapes={"attn_q_norm": ("n_q",), "attn_k_norm": ("n_kv",)},
    metadata=partial(expert_metadata.experts, usually_normed=False),
)
ERNIE4_5_MOE = Architecture(
    name="ernie4_5-moe",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS, "exp_probs_b.bias"),
    dense_tensors=GATED_FFN,
    shapes={"exp_probs_b.bias": ("one", "n_expert")},
    ignored_tensors=r"model\.mtp_(block|emb_norm|hidden_norm|linear_proj)\..*",
    tensor_names={"mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias"},
    int_keys={"first_k_dense_replace": "leading_dense_block_count", "n_shared_experts": "expert_shared_count"},
    read_hparams=expert_metadata.ernie_hparams,
    metadata=expert_metadata.ernie_experts,
    required_values={"use_bias": False},
    defaults={"tie_word_embeddings": True},
)
HUNYUAN_MOE = Architecture(
    name="hunyuan-moe",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *HEAD_NORMS, *EXPERTS, *SHARED_EXPERTS),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    read_hparams=expert_metadata.hunyuan_hparams,
    metadata=expert_metadata.hunyuan_experts,
    required_values={"use_cla": False, "moe_layer_num_skipped": 0},
)
DOTS1 = Architecture(
    name="dots1",
    may_have_window=True,
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *HEAD_NORMS),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS, "exp_probs_b.bias"),
    dense_tensors=GATED_FFN,
    tensor_names={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
    float_keys={"routed_scaling_factor": "expert_weights_scale"},
    bool_keys={"norm_topk_prob": "expert_weights_norm"},
    int_keys={
        "first_k_dense_replace": "leading_dense_block_count",
        "n_shared_experts": "expert_shared_count",
        **EXPERT_GROUPS,
    },
    metadata=expert_metadata.sigmoid_experts,
    required_values={"scoring_func": "sigmoid"},
    defaults={"n_group": 1, "topk_group": 1},
)
EXAONE_MOE = replace(
    DOTS1,
    name="exaone-moe",
    may_have_window=False,
    optional_layer_tensors=(),
    tensor_names={**DOTS1.tensor_names, "mlp.e_score_correction_bias": "exp_probs_b.bias"},
    window_period=4,
    writes_window_flags=True,
    key_aliases={"n_shared_experts": "num_shared_experts"},
    metadata=expert_metadata.exaone_experts,
)
AFMOE = replace(
    DOTS1,
    name="afmoe",
    may_have_window=False,
    layer_tensors=(*DOTS1.layer_tensors, *POST_NORMS, "attn_gate"),
    optional_layer_tensors=(),
    shapes={"attn_gate": ("n_q", "n_embd")},
    tensor_names={"mlp.expert_bias": "exp_probs_b.bias"},
    window_period=4,
    key_aliases={"n_shared_experts": "num_shared_experts"},
    float_keys={"route_scale": "expert_weights_scale"},
    bool_keys={"route_norm": "expert_weights_norm"},
    required_values={"score_func": "sigmoid", "route_norm": True, "mup_enabled": True},
    defaults={**DOTS1.defaults, "route_norm": True, "mup_enabled": False},
)
BAILINGMOE2 = replace(
    DOTS1,
    name="bailingmoe2",
    may_have_window=False,
    layer_tensors=(*PRE_NORMS, *FUSED_QKV, *HEAD_NORMS),
    optional_layer_tensors=(),
    tensor_names={"mlp.gate.expert_bias": "exp_probs_b.bias"},
    has_partial_rope=True,
    key_aliases={"n_shared_experts": "num_shared_experts"},
    metadata=expert_metadata.bailing_experts,
    required_values={
        "score_function": "sigmoid", "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False, "norm_head": False,
        "moe_router_enable_expert_bias": True,
    },
    defaults={**DOTS1.defaults, "partial_rotary_factor": 0.5},
)  # fmt: skip
BAILINGMOE = Architecture(
    name="bailingmoe",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *EXPERTS, *SHARED_EXPERTS),
    fused_sources=dict.fromkeys(("attn_q", "attn_k", "attn_v"), "attn_qkv"),
    reorder={"attn_q": reorder.first_queries, "attn_k": reorder.middle_keys, "attn_v": reorder.last_values},
    tensor_names={"attention.query_key_value": "attn_qkv", "attention.dense": "attn_output"},
    key_aliases=BAILINGMOE2.key_aliases,
    bool_keys={"norm_topk_prob": "expert_weights_norm"},
    int_keys={
        "first_k_dense_replace": "leading_dense_block_count", "n_shared_experts": "expert_shared_count",
    },
    metadata=expert_metadata.softmax_experts,
    required_values={
        "first_k_dense_replace": 0, "use_qkv_bias": False, "use_bias": False, "norm_head": False, "norm_softmax": False,
    },
)  # fmt: skip
ARCTIC = Architecture(
    name="arctic",
    layer_tensors=(*PRE_NORMS, "ffn_norm_exps", *SEPARATE_QKV, *GATED_FFN, *EXPERTS),
    shapes={**dict.fromkeys(GATED_FFN, ("n_embd", "n_embd")), "ffn_norm_exps": ("n_embd",)},
    reorder=INTERLEAVED_ROPE,
    name_map_architecture="llama",  # the `gguf` package replaces names for all that follow once it made Arctic's map
    tensor_names={
        **MIXTRAL.tensor_names,
        **{f"residual_mlp.{old}": new for old, new in zip(W123, GATED_FFN, strict=True)},
        "residual_layernorm": "ffn_norm", "post_attention_layernorm": "ffn_norm_exps",
    },
    metadata=expert_metadata.experts,
    required_values={"moe_layer_frequency": 1, "parallel_attn_mlp_res": True, "use_residual": True},
)  # fmt: skip
HY_V3 = replace(
    DOTS1,
    name="hy_v3",
    may_have_window=False,
    optional_layer_tensors=(),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS, "exp_probs_b"),
    no_weight_suffix=("exp_probs_b",),
    name_map_architecture="dots1",
    tensor_names={
        "mlp.router.gate": "ffn_gate_inp",
        **dict.fromkeys(("mlp.expert_bias", "mlp.e_score_correction_bias"), "exp_probs_b"),
        **{f"mlp.shared_mlp.{each.split('_')[1]}_proj": each for each in SHARED_EXPERTS},
        "final_layernorm": "nextn.shared_head_norm",
    },
    has_mtp=True,
    key_aliases={"n_shared_experts": "num_shared_experts"},
    float_keys={"router_scaling_factor": "expert_weights_scale"},
    bool_keys={"route_norm": "expert_weights_norm"},
    int_keys={},
    read_hparams=expert_metadata.dense_first_hparams,
    metadata=expert_metadata.hy_experts,
    required_values={"moe_router_use_sigmoid": True, "qk_norm": True},
    defaults={"first_k_dense_replace": 1, "route_norm": True, "router_scaling_factor": 1.0},
)
LAGUNA = replace(
    DOTS1,
    name="laguna",
    may_have_window=False,
    layer_tensors=(*DOTS1.layer_tensors, "attn_gate"),
    optional_layer_tensors=(),
    shapes={"attn_gate": ("n_head", "n_embd")},
    name_map_architecture="dots1",
    tensor_names={
        "self_attn.g_proj": "attn_gate",
        "mlp.experts.e_score_correction_bias": "exp_probs_b.bias",
        **{f"mlp.shared_expert.{each.split('_')[1]}_proj": each for each in SHARED_EXPERTS},
    },
    has_partial_rope=True,
    has_window_rope=True,
    window_period=4,
    first_is_full=True,
    writes_window_flags=True,
    float_keys={"moe_routed_scaling_factor": "expert_weights_scale"},
    bool_keys={},
    int_keys={},
    read_hparams=expert_metadata.dense_first_hparams,
    metadata=layer_overrides.laguna_metadata,
    layer_overrides=layer_overrides.laguna_layers,
    required_values={
        "moe_apply_router_weight_on_input": False, "moe_router_logit_softcapping": 0.0, "attention_bias": False,
    },
    defaults={"first_k_dense_replace": 0, "moe_routed_scaling_factor": 1.0},
)  # fmt: skip
MIMO2 = replace(
    DOTS1,
    name="mimo2",
    may_have_window=False,
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, "attn_sinks"),
    optional_layer_tensors=biases("attn_q", "attn_k", "attn_v"),
    moe_tensors=(*EXPERTS, "exp_probs_b.bias"),
    tensor_names={**DOTS1.tensor_names, "self_attn.attention_sink_bias": "attn_sinks.weight"},
    has_partial_rope=True,
    has_window_rope=True,
    window_period=0,
    writes_window_flags=True,
    key_aliases={"rms_norm_eps": "layernorm_epsilon", "rope_local_base_freq": "swa_rope_theta"},
    float_keys={"attention_value_scale": "attention.value_scale"},
    bool_keys={},
    int_keys=EXPERT_GROUPS,
    read_hparams=layer_overrides.mimo_hparams,
    metadata=layer_overrides.mimo_metadata,
    layer_overrides=layer_overrides.mimo_layers,
    has_mtp=True,
    mtp_windows=lambda config, count: [True] * count,  # noqa: ARG005
    required_values={
        "scoring_func": "sigmoid", "norm_topk_prob": True, "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True, "routed_scaling_factor": 1.0,
    },
    defaults={**DOTS1.defaults, "first_k_dense_replace": 0},
)  # fmt: skip
MELLUM = Architecture(
    name="mellum",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *HEAD_NORMS, *EXPERTS),
    name_map_architecture="qwen3moe",
    window_period=4,
    writes_window_flags=True,
    has_window_rope=True,
    metadata=expert_metadata.experts,
    required_values={"norm_topk_prob": True, "attention_bias": False},
)
MAPLE = replace(
    MELLUM,
    name="maple",
    window_period=0,
    has_partial_rope=True,
    has_window_rope=False,
    metadata=expert_metadata.maple_experts,
    required_values={**MELLUM.required_values, "num_shared_experts": 0, "nope_on_global_attention": True},
    defaults={"norm_topk_prob": True},
)
SMALLTHINKER = Architecture(
    name="smallthinker",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *EXPERTS),
    activations=("relu",),
    writes_window_flags=True,
    key_aliases={
        "intermediate_size": "moe_ffn_hidden_size", "moe_intermediate_size": "moe_ffn_hidden_size",
        "num_experts": "moe_num_primary_experts", "num_experts_per_tok": "moe_num_active_primary_experts",
    },
    read_hparams=attention_metadata.smallthinker_hparams,
    metadata=expert_metadata.smallthinker_experts,
    required_values={"moe_enable_early_router": True, "moe_enable_secondary_experts": False},
)  # fmt: skip
COHERE2MOE = Architecture(
    name="cohere2moe",
    layer_tensors=("attn_norm", *SEPARATE_QKV),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS),
    dense_tensors=GATED_FFN,
    name_map_architecture="dots1",
    has_mtp=True,
    norm="layer",
    window_period=4,
    writes_window_flags=True,
    key_aliases={
        "intermediate_size": "prefix_dense_intermediate_size", "moe_intermediate_size": "intermediate_size",
        "n_shared_experts": "num_shared_experts",
    },
    float_keys={"logit_scale": "logit_scale"},
    read_hparams=expert_metadata.dense_first_hparams,
    metadata=expert_metadata.cohere_experts,
    required_values={
        "attention_bias": False, "shared_expert_combination_strategy": "average",
        "prefix_dense_sliding_window_pattern": 1,
    },
    defaults={
        "tie_word_embeddings": True, "layer_norm_eps": 1e-5, "logit_scale": 0.0625, "num_shared_experts": 0,
        "first_k_dense_replace": 0, "expert_selection_fn": "softmax", "norm_topk_prob": True,
    },
)  # fmt: skip
COHERE2MOE_RMS = replace(COHERE2MOE, norm="rms")
DBRX = Architecture(
    name="dbrx",
    layer_tensors=("attn_norm", "attn_output_norm", *FUSED_QKV, *EXPERTS),
    shapes=dict.fromkeys(EXPERTS[1:], ("n_ff_all_experts", "n_embd")),
    final_shapes={
        **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), ("n_expert", "n_ff_expert", "n_embd")),
        "ffn_down_exps": ("n_expert", "n_embd", "n_ff_expert"),
    },
    reorder={
        "ffn_gate_exps": reorder.split_experts,
        "ffn_up_exps": reorder.split_experts,
        "ffn_down_exps": reorder.split_and_transpose_experts,
    },
    norm="layer",
    config_parts=("attn_config", "ffn_config"),
    key_aliases={
        "hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len", "num_key_value_heads": "kv_n_heads",
        "num_experts_per_tok": "moe_top_k",
    },
    float_keys={"clip_qkv": "attention.clamp_kqv"},
    metadata=expert_metadata.experts,
    required_values={"ffn_act_fn": {"name": "silu"}, "moe_normalize_expert_weights": 1},
    defaults={"layer_norm_eps": 1e-5},
)  # fmt: skip
GPT_OSS = Architecture(
    name="gpt-oss",
    layer_tensors=(
        "attn_norm", "post_attention_norm", *SEPARATE_QKV, *biases(*SEPARATE_QKV), "attn_sinks",
        *EXPERTS, *biases(*EXPERTS),
    ),
    fused_sources={
        **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps"),
        **dict.fromkeys(biases("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps.bias"),
    },
    reorder={
        "ffn_gate_exps": reorder.even_columns,
        "ffn_gate_exps.bias": reorder.even_columns,
        "ffn_up_exps": reorder.odd_columns,
        "ffn_up_exps.bias": reorder.odd_columns,
        "ffn_down_exps": reorder.transpose,
    },
    mxfp4_rows={"ffn_gate_exps": slice(0, None, 2), "ffn_up_exps": slice(1, None, 2), "ffn_down_exps": slice(None)},
    tensor_names={
        "self_attn.sinks": "attn_sinks.weight",
        "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "mlp.experts.gate_up_proj_blocks": "ffn_gate_up_exps.blocks",
        "mlp.experts.gate_up_proj_scales": "ffn_gate_up_exps.scales",
        "mlp.experts.gate_up_proj_bias": "ffn_gate_up_exps.bias",
        "mlp.experts.down_proj": "ffn_down_exps.weight",
        "mlp.experts.down_proj_blocks": "ffn_down_exps.blocks",
        "mlp.experts.down_proj_scales": "ffn_down_exps.scales",
        "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    },
    truncates_yarn=False,
    window_period=2,
    key_aliases={"moe_intermediate_size": "intermediate_size"},
    metadata=expert_metadata.experts,
    required_values={"swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": True},
)  # fmt: skip


def laguna(config: JsonObject) -> Architecture:
    """Return the architecture with a gate for each head, or for each value of a head."""
    gating = config.values.get("gating", True)
    if gating not in (True, "per-head", "per-element"):
        raise config.error("gating", "must be true, per-head or per-element", UnsupportedError)
    return replace(LAGUNA, shapes={"attn_gate": ("n_q", "n_embd")}) if gating == "per-element" else LAGUNA


def cohere2moe(config: JsonObject) -> Architecture:
    """Return the architecture with LayerNorms, or RMSNorms if config.json has their epsilon."""
    return COHERE2MOE if config.values.get("rms_norm_eps") is None else COHERE2MOE_RMS


BY_CLASS: Mapping[str, Architecture | Callable[[JsonObject], Architecture]] = {
    "MixtralForCausalLM": MIXTRAL,
    "MiniMaxM2ForCausalLM": MINIMAX_M2,
    "Llama4ForCausalLM": LLAMA4,
    "Llama4ForConditionalGeneration": LLAMA4,
    "OlmoeForCausalLM": OLMOE,
    "Ernie4_5_MoeForCausalLM": ERNIE4_5_MOE,
    "HunYuanMoEV1ForCausalLM": HUNYUAN_MOE,
    "Dots1ForCausalLM": DOTS1,
    "ExaoneMoEForCausalLM": EXAONE_MOE,
    "ExaoneMoeForCausalLM": EXAONE_MOE,
    "AfmoeForCausalLM": AFMOE,
    "BailingMoeV2ForCausalLM": BAILINGMOE2,
    "BailingMoeForCausalLM": BAILINGMOE,
    "ArcticForCausalLM": ARCTIC,
    "HYV3ForCausalLM": HY_V3,
    "LagunaForCausalLM": laguna,
    "MiMoV2FlashForCausalLM": MIMO2,
    "MellumForCausalLM": MELLUM,
    "MapleForCausalLM": MAPLE,
    "SmallThinkerForCausalLM": SMALLTHINKER,
    "Cohere2MoeForCausalLM": cohere2moe,
    "DbrxForCausalLM": DBRX,
    "GptOssForCausalLM": GPT_OSS,
}
