"""The architectures, as a table: one more is a row in BY_CLASS, and an Architecture that says what is its own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from math import inf

from localinfer.checkpoint import own_blocks, own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.spelling import spelled
from localinfer.checkpoint.stored import reorder
from localinfer.errors import Unsupported
from localinfer.text import printable

BEFORE = ("attn_norm", "ffn_norm")  # norms before the branches
BEHIND = ("post_attention_norm", "post_ffw_norm")  # ... before they join the residual stream
HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
APART = ("attn_q", "attn_k", "attn_v", "attn_output")
FUSED = ("attn_qkv", "attn_output")
PLAIN = ("ffn_up", "ffn_down")
GATED = ("ffn_gate", *PLAIN)  # glm4 and phi3 have the gate in ffn_up
EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
W123 = ("w1", "w3", "w2")  # gates, ups and downs, in some checkpoints
SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
GELU, EXACT_GELU, RELU2 = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), ("gelu",), ("relu2",)
NEIGHBOURS = {
    "attn_q": reorder.neighbouring_queries,
    "attn_q.bias": reorder.neighbouring_queries,
    "attn_k": reorder.neighbouring_keys,
    "attn_k.bias": reorder.neighbouring_keys,
}


def biases(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}.bias" for name in names)


LLAMA = Architecture(
    name="llama",
    block=(*BEFORE, *APART, *GATED),
    optional=biases(*APART, *GATED),
    reorder=NEIGHBOURS,
)
MISTRAL3 = Architecture(name="mistral3", block=LLAMA.block, reorder=NEIGHBOURS, own_keys=own_keys.growing_temperature)
SMOLLM3 = Architecture(
    name="smollm3",
    block=LLAMA.block,
    optional=LLAMA.optional,
    reorder=NEIGHBOURS,
    own_keys=own_keys.each_fourth_without_rope,
    defaults={"tie_word_embeddings": True},
)
GRANITE = Architecture(
    name="granite",
    block=LLAMA.block,
    optional=LLAMA.optional,
    reorder=NEIGHBOURS,
    scales={
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    },
    defaults={
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
)
MINICPM = Architecture(
    name="minicpm",
    block=LLAMA.block,
    reorder=NEIGHBOURS,
    own_keys=own_keys.scales_of_minicpm,
    defaults={"tie_word_embeddings": True},
)
INTERNLM2 = Architecture(
    name="internlm2",
    block=LLAMA.block,
    optional=biases(*APART),
    parts=dict.fromkeys(("attn_q", "attn_k", "attn_v"), "attn_qkv")
    | dict.fromkeys(biases("attn_q", "attn_k", "attn_v"), "attn_qkv.bias"),
    reorder={
        "attn_q": reorder.queries_of_groups,
        "attn_k": reorder.keys_of_groups,
        "attn_v": reorder.values_of_groups,
        "attn_q.bias": reorder.queries_of_groups,
        "attn_k.bias": reorder.keys_of_groups,
        "attn_v.bias": reorder.values_of_groups,
    },
    names={"attention.wqkv": "attn_qkv"},
)
QWEN2 = Architecture(name="qwen2", block=(*LLAMA.block, *biases("attn_q", "attn_k", "attn_v")))
QWEN3 = Architecture(name="qwen3", block=(*LLAMA.block, *HEAD_NORMS))
MIXTRAL = Architecture(
    name="llama",
    block=(*BEFORE, *APART, *EXPERTS),
    reorder=NEIGHBOURS,
    names={f"block_sparse_moe.experts.{old}": new for old, new in zip(W123, EXPERTS[1:], strict=True)},
    own_keys=own_keys.experts,
)
LLAMA4 = Architecture(
    name="llama4",
    block=(*BEFORE, *APART),
    mixture=(*EXPERTS, *SHARED),
    dense=GATED,
    parts=dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps"),
    reorder={
        "ffn_gate_exps": reorder.first_columns, "ffn_up_exps": reorder.last_columns, "ffn_down_exps": reorder.transposed
    },
    names={"feed_forward.experts.gate_up_proj": "ffn_gate_up_exps.weight"},
    spellings={"intermediate_size": "intermediate_size_mlp", "moe_intermediate_size": "intermediate_size"},
    own_numbers=own_keys.numbers_of_llama4,
    own_keys=own_keys.stretches,
    fixed={"attention_bias": False},
    defaults={"first_k_dense_replace": 0},
)
QWEN3MOE = Architecture(
    name="qwen3moe",
    block=(*BEFORE, *APART, *HEAD_NORMS, *EXPERTS),
    own_keys=own_keys.experts,
    fixed={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
)
OLMOE = Architecture(
    name="olmoe",
    block=(*BEFORE, *APART, *HEAD_NORMS, *EXPERTS),
    sizes={"attn_q_norm": ("n_q",), "attn_k_norm": ("n_kv",)},
    own_keys=own_keys.experts,
    fixed={"norm_topk_prob": False},
)
QWEN2MOE = Architecture(
    name="qwen2moe",
    block=(*BEFORE, *APART, *biases("attn_q", "attn_k", "attn_v"), *EXPERTS, "ffn_gate_inp_shexp", *SHARED),
    counts={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
    own_keys=own_keys.experts,
    fixed={"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "qkv_bias": True},
    defaults={"norm_topk_prob": False},
)
FUSED_EXPERTS = dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps")  # as transformers has them
FUSED_SIZES = {"ffn_gate_up_exps": ("n_expert", "n_gate_and_up_expert", "n_embd")}
HALVES = {"ffn_gate_exps": reorder.first_half, "ffn_up_exps": reorder.second_half}
GRANITEMOE = Architecture(
    name="granitemoe",
    block=(*BEFORE, *APART, *EXPERTS),
    optional=SHARED,
    sizes=FUSED_SIZES,
    parts={**FUSED_EXPERTS, **dict.fromkeys(("ffn_gate_shexp", "ffn_up_shexp"), "ffn_gate_up_shexp")},
    reorder={
        **NEIGHBOURS, **HALVES, "ffn_gate_shexp": reorder.first_half, "ffn_up_shexp": reorder.second_half
    },
    names={
        "block_sparse_moe.input_linear": "ffn_gate_up_exps",
        "shared_mlp.input_linear": "ffn_gate_up_shexp",
    },
    scales=GRANITE.scales,
    own_keys=own_keys.experts_of_granite,
    defaults=GRANITE.defaults,
)
ERNIE4_5_MOE = Architecture(
    name="ernie4_5-moe",
    block=(*BEFORE, *APART),
    optional=biases(*APART),
    mixture=(*EXPERTS, *SHARED, "exp_probs_b.bias"),
    dense=GATED,
    sizes={"exp_probs_b.bias": ("one", "n_expert")},
    left_out=r"model\.mtp_(block|emb_norm|hidden_norm|linear_proj)\..*",
    names={"mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias"},
    counts={"first_k_dense_replace": "leading_dense_block_count", "n_shared_experts": "expert_shared_count"},
    own_keys=own_keys.experts_of_ernie,
    fixed={"moe_layer_interval": 1, "use_bias": False},
    defaults={"tie_word_embeddings": True},
)
HUNYUAN_MOE = Architecture(
    name="hunyuan-moe",
    block=(*BEFORE, *APART, *HEAD_NORMS, *EXPERTS, *SHARED),
    own_numbers=own_keys.numbers_of_hunyuan,
    own_keys=own_keys.experts_of_hunyuan,
    fixed={"use_cla": False, "moe_layer_num_skipped": 0},
)
PHIMOE = Architecture(
    name="phimoe",
    block=(*BEFORE, *biases(*BEFORE), *APART, *EXPERTS),
    optional=biases(*APART),
    model=("output_norm.bias",),
    optional_model=("output.bias",),
    names={f"block_sparse_moe.experts.{old}": new for old, new in zip(W123, EXPERTS[1:], strict=True)},
    own_keys=own_keys.experts_of_phi,
    fixed={"router_jitter_noise": 0.01, "num_experts_per_tok": 2},
)
GROUPS = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}
DOTS1 = Architecture(
    name="dots1",
    block=(*BEFORE, *APART, *HEAD_NORMS),
    mixture=(*EXPERTS, *SHARED, "exp_probs_b.bias"),
    dense=GATED,
    names={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
    scales={"routed_scaling_factor": "expert_weights_scale"},
    flags={"norm_topk_prob": "expert_weights_norm"},
    counts={"first_k_dense_replace": "leading_dense_block_count", "n_shared_experts": "expert_shared_count", **GROUPS},
    own_keys=own_keys.sigmoid_experts,
    fixed={"n_group": 1, "topk_group": 1, "scoring_func": "sigmoid"},
    defaults={"n_group": 1, "topk_group": 1},
)
GLM4MOE = Architecture(
    name="glm4moe",
    block=("attn_norm", "post_attention_norm", *APART),
    optional=(*HEAD_NORMS, *biases("attn_q", "attn_k", "attn_v")),
    mixture=DOTS1.mixture,
    dense=GATED,
    names=DOTS1.names,
    part_turns=True,
    predicts_further=True,
    scales=DOTS1.scales,
    flags=DOTS1.flags,
    counts=DOTS1.counts,
    own_keys=own_keys.experts_of_glm,
    fixed=DOTS1.fixed,
    defaults={**DOTS1.defaults, "partial_rotary_factor": 0.5},
)
LATENT = ("attn_kv_a_mqa", "attn_kv_a_norm", "attn_k_b", "attn_v_b", "attn_output")
NARROW_QUERIES = ("attn_q_a", "attn_q_a_norm", "attn_q_b")
DEEPSEEK2 = Architecture(
    name="deepseek2",
    block=(*BEFORE, *LATENT),
    optional=("attn_q", *NARROW_QUERIES),
    mixture=(*EXPERTS, *SHARED),
    dense=GATED,
    sizes={"attn_q": ("n_q", "n_embd"), "attn_output": ("n_embd", "n_values")},
    parts=dict.fromkeys(("attn_k_b", "attn_v_b"), "attn_kv_b"),
    reorder={"attn_k_b": reorder.keys_of_latent, "attn_v_b": reorder.values_of_latent},
    part_turns=True,
    predicts_further=True,
    spellings={"head_dim": "qk_rope_head_dim"},
    scales=DOTS1.scales,
    counts={"first_k_dense_replace": "leading_dense_block_count", "n_shared_experts": "expert_shared_count"},
    own_numbers=own_keys.numbers_of_latent,
    own_keys=own_keys.latent,
    fixed={"rope_interleave": True, "moe_layer_freq": 1},
    defaults={"scoring_func": "softmax"},
)
DEEPSEEK3 = replace(
    DEEPSEEK2,
    mixture=(*DEEPSEEK2.mixture, "exp_probs_b.bias"),
    names=DOTS1.names,
    fixed={**DEEPSEEK2.fixed, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    defaults={"scoring_func": "sigmoid"},
)
MISTRAL4 = replace(
    DEEPSEEK2,
    name="mistral4",
    mixture=("ffn_gate_inp", "ffn_gate_up_exps", "ffn_down_exps", *SHARED),
    sizes={**DEEPSEEK2.sizes, "ffn_gate_up_exps": ("n_expert", "n_gate_and_up_expert", "n_embd")},
    own_keys=own_keys.growing_latent,
)
GPT_OSS = Architecture(
    name="gpt-oss",
    block=(
        "attn_norm", "post_attention_norm", *APART, *biases(*APART), "attn_sinks", *EXPERTS, *biases(*EXPERTS),
    ),
    parts={
        **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps"),
        **dict.fromkeys(biases("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps.bias"),
    },
    reorder={
        "ffn_gate_exps": reorder.gates,
        "ffn_gate_exps.bias": reorder.gates,
        "ffn_up_exps": reorder.ups,
        "ffn_up_exps.bias": reorder.ups,
        "ffn_down_exps": reorder.transposed,
    },
    mxfp4={"ffn_gate_exps": slice(0, None, 2), "ffn_up_exps": slice(1, None, 2), "ffn_down_exps": slice(None)},
    names={
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
    truncates=False,
    period=2,
    spellings={"moe_intermediate_size": "intermediate_size"},
    own_keys=own_keys.experts,
    fixed={"swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": True},
)  # fmt: skip
EXAONE4 = Architecture(name="exaone4", block=(*BEHIND, *APART, *GATED, *HEAD_NORMS), period=4, every_window=True)
OLMO2 = Architecture(
    name="olmo2",
    block=(*BEHIND, *APART, *GATED, *HEAD_NORMS),
    sizes={"attn_q_norm": ("n_q",), "attn_k_norm": ("n_kv",)},
    period=4,
    every_window=True,
    window_rope=True,
)
ERNIE4_5 = Architecture(name="ernie4_5", block=LLAMA.block, optional=biases(*APART, *GATED))
HUNYUAN_DENSE = Architecture(name="hunyuan-dense", block=(*LLAMA.block, *HEAD_NORMS), fixed={"use_cla": False})
SEED_OSS = Architecture(
    name="seed_oss",
    block=("attn_norm", "post_attention_norm", *APART, *GATED),
    optional=biases("attn_q", "attn_k", "attn_v"),
    fixed={"attention_out_bias": False, "mlp_bias": False},
)
GLM4 = Architecture(
    name="glm4",
    block=(*BEFORE, *BEHIND, *APART, *PLAIN),
    optional=biases("attn_q", "attn_k", "attn_v"),
    sizes={"ffn_up": ("n_gate_and_up", "n_embd")},
    part_turns=True,
    defaults={"partial_rotary_factor": 0.5},
)
BITNET = Architecture(
    name="bitnet",
    block=(*LLAMA.block, "attn_sub_norm", "ffn_sub_norm"),
    ternary=(*APART, *GATED),
    own_keys=own_keys.unscaled,
)
BITNET_B158 = Architecture(
    name="bitnet-b1.58",
    like="bitnet",
    block=BITNET.block,
    names={"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
    ternary=BITNET.ternary,
    activation=RELU2,
    own_keys=own_keys.unscaled,
)
NEMOTRON = Architecture(
    name="nemotron",
    block=(*BEFORE, *biases(*BEFORE), *APART, *PLAIN),
    optional=biases(*APART, *PLAIN),
    model=("output_norm.bias",),
    norm="layer",
    norm_offset=1.0,
    activation=RELU2,
    part_turns=True,
    own_keys=own_keys.not_scaled,
    defaults={"partial_rotary_factor": 0.5},
)

GEMMA = Architecture(
    name="gemma",
    block=LLAMA.block,
    norm_offset=1.0,
    activation=GELU + EXACT_GELU,  # which the first configurations said by mistake
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
)
GEMMA2 = Architecture(
    name="gemma2",
    block=(*BEFORE, *BEHIND, *APART, *GATED),
    norm_offset=1.0,
    activation=GELU,
    period=2,
    scales={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    defaults=GEMMA.defaults,
)
GEMMA3 = Architecture(
    name="gemma3",
    block=(*BEFORE, *BEHIND, *APART, *GATED, *HEAD_NORMS),
    norm_offset=1.0,
    activation=GELU,
    period=6,
    window_rope=True,
    scales={"final_logit_softcapping": "final_logit_softcapping"},
    defaults={  # the larger models' configurations say only what is different
        **GEMMA.defaults,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
    },
)

GEMMA4 = Architecture(
    name="gemma4",
    block=(*BEFORE, *BEHIND, *APART, *GATED, *HEAD_NORMS),
    optional=(
        "layer_output_scale", "inp_gate", "proj", "post_norm", "ffn_gate_inp", "ffn_gate_inp.scale",
        "ffn_gate_up_exps", "ffn_down_exps", "ffn_down_exps.scale", "pre_ffw_norm_2", "post_ffw_norm_1",
        "post_ffw_norm_2",
    ),
    optional_model=("per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"),
    activation=GELU,
    period=6,
    every_window=True,
    window_rope=True,
    scales={"final_logit_softcapping": "final_logit_softcapping"},
    merges_characters="gemma4",
    sizes={"ffn_gate_up_exps": ("n_expert", "n_gate_and_up_expert", "n_embd")},
    names={"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"},
    spellings={"num_experts_per_tok": "top_k_experts"},
    own_keys=own_blocks.gemma4,
    own_blocks=own_blocks.blocks_of_gemma4,
    fixed={"attention_bias": False, "use_bidirectional_attention": "vision"},  # of pictures only
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
)  # fmt: skip

GEMMA3N = Architecture(
    name="gemma3n",
    block=(
        *BEFORE, *BEHIND, *APART, *GATED, *HEAD_NORMS, "inp_gate", "proj", "post_norm", "altup_router",
        "altup_router_norm", "altup_predict_coef", "altup_correct_coef", "altup_correct_scale", "laurel_l", "laurel_r",
        "laurel_post_norm",
    ),
    model=("per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm", "altup_proj", "altup_unembd_proj"),
    sizes={"per_layer_token_embd": ("n_vocab_input", "n_inputs")},
    folded={"per_layer_token_embd": ("n_vocab", "n_inputs")},
    reorder={"per_layer_token_embd": reorder.to_whole_vocabulary},
    activation=GELU,
    period=5,
    every_window=True,
    window_rope=True,
    scales={"final_logit_softcapping": "final_logit_softcapping"},
    own_numbers=own_keys.numbers_of_gemma3n,
    own_keys=own_keys.streams_and_sparsity,
    own_blocks=own_blocks.blocks_of_gemma3n,
    fixed={"attention_bias": False, "altup_active_idx": 0, "altup_correct_scale": True},
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6},
)  # fmt: skip

PHI2 = Architecture(
    name="phi2",
    block=("attn_norm", "attn_norm.bias", *APART, *biases(*APART), *PLAIN, *biases(*PLAIN)),
    model=("output_norm.bias", "output.bias"),
    norm="layer",
    activation=GELU,
    part_turns=True,
    fixed={"qk_layernorm": False},
    defaults={"partial_rotary_factor": 0.5},
)
PHI3 = Architecture(
    name="phi3",
    block=(*BEFORE, *FUSED, *PLAIN),
    sizes={"ffn_up": ("n_gate_and_up", "n_embd")},
    part_turns=True,
    period=0,
    own_keys=own_keys.original_context,
)
STABLELM = Architecture(
    name="stablelm",
    block=("attn_norm", "attn_norm.bias", *APART, *GATED),
    optional=("ffn_norm", "ffn_norm.bias", *biases("attn_q", "attn_k", "attn_v"), *HEAD_NORMS),
    model=("output_norm.bias",),
    sizes={"attn_q_norm": ("n_head", "head_dim"), "attn_k_norm": ("n_head_kv", "head_dim")},
    norm="layer",
    part_turns=True,
    flags={"use_parallel_residual": "use_parallel_residual"},
    defaults={"partial_rotary_factor": 0.25, "use_parallel_residual": False},
)
STARCODER2 = Architecture(
    name="starcoder2",
    block=(*BEFORE, *biases(*BEFORE), *APART, *PLAIN),
    optional=biases(*APART, *PLAIN),
    model=("output_norm.bias",),
    norm="layer",
    activation=GELU,
    defaults={"tie_word_embeddings": True},
)
LFM2 = Architecture(
    name="lfm2",
    block=(*BEFORE, *GATED),
    kinds={
        "conv": ("shortconv.in_proj", "shortconv.conv", "shortconv.out_proj"),
        "full_attention": (*APART, *HEAD_NORMS),
    },
    output_norm="token_embd_norm",
    own_numbers=own_keys.numbers_of_lfm2,
    own_keys=own_keys.short_convolutions,
    fixed={"conv_bias": False},
    defaults={"tie_word_embeddings": True, "rope_theta": 1_000_000.0},
)
LFM2MOE = replace(
    LFM2,
    name="lfm2moe",
    block=BEFORE,
    mixture=(*EXPERTS, "exp_probs_b.bias"),
    dense=GATED,
    names={
        **{f"feed_forward.experts.{old}": new for old, new in zip(W123, EXPERTS[1:], strict=True)},
        "feed_forward.expert_bias": "exp_probs_b.bias",
    },
    counts={"first_k_dense_replace": "leading_dense_block_count"},
    own_numbers=own_keys.numbers_of_lfm2_with_experts,
    own_keys=own_keys.short_convolutions_with_experts,
    fixed={"conv_bias": False, "use_expert_bias": True, "norm_topk_prob": True, "routed_scaling_factor": 1.0},
)
QWEN35 = Architecture(
    name="qwen35",
    block=("attn_norm", "post_attention_norm", *GATED),
    kinds={
        "linear_attention": (
            "attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_conv1d", "ssm_dt.bias", "ssm_a", "ssm_norm",
            "ssm_out",
        ),
        "full_attention": (*APART, *HEAD_NORMS),
    },
    sizes={"attn_qkv": ("n_convolved", "n_embd"), "attn_q": ("n_2q", "n_embd")},
    reorder={
        "attn_qkv": reorder.behind_keys_in_turns,
        "ssm_conv1d": reorder.behind_keys_in_turns,
        "attn_gate": reorder.values_in_turns,
        **dict.fromkeys(("ssm_alpha", "ssm_beta", "ssm_dt.bias", "ssm_a"), reorder.numbers_in_turns),
        "ssm_out": reorder.columns_in_turns,
    },
    norm_offset=1.0,
    part_turns=True,
    predicts_further=True,
    own_numbers=own_keys.numbers_of_delta_net,
    own_keys=own_keys.delta_net,
    fixed={"attention_bias": False, "attn_output_gate": True},
)
QWEN35MOE = replace(
    QWEN35,
    name="qwen35moe",
    block=("attn_norm", "post_attention_norm", *EXPERTS, "ffn_gate_inp_shexp", *SHARED),
    sizes={**QWEN35.sizes, **FUSED_SIZES},
    parts=FUSED_EXPERTS,
    reorder={**QWEN35.reorder, **HALVES},
    counts=QWEN2MOE.counts,
    own_keys=own_keys.delta_net_with_experts,
)
QWEN3NEXT = replace(
    QWEN35MOE,
    name="qwen3next",
    kinds={
        **QWEN35.kinds,
        "linear_attention": (
            "attn_qkv", "attn_gate", "ssm_ba", "ssm_conv1d", "ssm_dt.bias", "ssm_a", "ssm_norm", "ssm_out"
        ),
    },
    parts={**QWEN35MOE.parts, "attn_qkv": "ssm_in", "attn_gate": "ssm_in"},
    reorder={
        "attn_qkv": reorder.keys_and_values,
        "attn_gate": reorder.gates_of_values,
        **HALVES,
    },
    own_keys=own_keys.next_delta_net,
    fixed={**QWEN35.fixed, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
)
RECURRENT = ("linear_attention", "mamba")  # words for kinds of layers
STATES = ("ssm_in", "ssm_conv1d", "ssm_conv1d.bias", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_out")  # of recurrent heads
MAMBA2 = Architecture(
    name="mamba2",
    block=("attn_norm", *STATES, "ssm_norm"),
    sizes={"ssm_norm": ("n_values",)},
    folded={"ssm_a": ("n_heads", "one"), "ssm_d": ("n_heads", "one"), "ssm_norm": ("n_groups", "n_of_group")},
    attends=False,
    turns=False,
    spellings={"rms_norm_eps": "layer_norm_epsilon"},
    own_numbers=own_keys.numbers_of_mamba2,
    own_keys=own_keys.states,
    fixed={"use_bias": False, "use_conv_bias": True, "time_step_limit": [0.0, inf]},
    defaults={  # the first two change nothing that is written
        "num_attention_heads": 1,
        "intermediate_size": 1,
        "max_position_embeddings": 1 << 20,
        "tie_word_embeddings": False,
    },
)
MAMBA = Architecture(
    name="mamba",
    block=(
        "attn_norm", "ssm_in", "ssm_conv1d", "ssm_conv1d.bias", "ssm_x", "ssm_dt", "ssm_dt.bias", "ssm_a", "ssm_d",
        "ssm_out",
    ),
    sizes={"ssm_dt": ("n_values", "rank"), "ssm_a": ("n_values", "n_key"), "ssm_d": ("n_values",)},
    attends=False,
    turns=False,
    times=2,
    spellings=MAMBA2.spellings,
    own_numbers=own_keys.numbers_of_mamba,
    own_keys=own_keys.scans,
    fixed={"use_bias": False, "use_conv_bias": True},
    defaults={"num_attention_heads": 1, "max_position_embeddings": 1 << 20, "tie_word_embeddings": True},
)  # fmt: skip
FALCON_MAMBA = replace(MAMBA, own_keys=own_keys.scans_of_normed)
FALCON_H1 = Architecture(
    name="falcon-h1",
    block=(*BEFORE, *APART, *STATES, *GATED),
    optional=("ssm_norm",),
    bare=("ssm_a", "ssm_d", "ffn_norm"),
    sizes=MAMBA2.sizes,
    folded=MAMBA2.folded,
    multipliers=("embedding_multiplier",),
    own_numbers=own_keys.numbers_of_falcon_h1,
    own_keys=own_keys.states,
    fixed={
        "attention_bias": False, "mlp_bias": False, "projectors_bias": False, "mamba_conv_bias": True,
        "mamba_proj_bias": False, "mamba_norm_before_gate": False, "time_step_limit": [0.0, inf],
    },
)  # fmt: skip
GRANITEHYBRID = Architecture(
    name="granitehybrid",
    block=(*BEFORE, *GATED),
    kinds={"linear_attention": (*STATES, "ssm_norm"), "full_attention": APART},
    sizes={**MAMBA2.sizes, "ffn_gate_up": ("n_gate_and_up", "n_embd")},
    folded=MAMBA2.folded,
    parts=dict.fromkeys(("ffn_gate", "ffn_up"), "ffn_gate_up"),
    reorder={**NEIGHBOURS, "ffn_gate": reorder.first_half, "ffn_up": reorder.second_half},
    names={"shared_mlp.input_linear": "ffn_gate_up", "shared_mlp.output_linear": "ffn_down"},
    spellings={"intermediate_size": "shared_intermediate_size"},
    scales=GRANITE.scales,
    own_numbers=own_keys.numbers_of_mamba2,
    own_keys=own_keys.granite_hybrid,
    fixed={"attention_bias": False, "mamba_conv_bias": True, "mamba_proj_bias": False, "time_step_limit": [0.0, inf]},
    defaults=GRANITE.defaults,
)
GRANITEHYBRID_WITH_EXPERTS = replace(
    GRANITEHYBRID,
    block=(*BEFORE, *EXPERTS),
    optional=SHARED,
    sizes={**MAMBA2.sizes, **FUSED_SIZES},
    parts=GRANITEMOE.parts,
    reorder=GRANITEMOE.reorder,
    names=GRANITEMOE.names,
    spellings={},
)
NEMOTRON_H = Architecture(
    name="nemotron_h",
    block=("attn_norm",),
    kinds={**GRANITEHYBRID.kinds, "mlp": PLAIN},
    sizes=MAMBA2.sizes,
    folded=MAMBA2.folded,
    reorder=NEIGHBOURS,  # which nothing asks for, as nothing turns, but llama.cpp does so
    activation=RELU2,
    turns=False,
    norm="layer",  # the epsilon's name says so, but they are by the mean square
    spellings={"hidden_act": "mlp_hidden_act", "head_dim": "attention_head_dim"},
    own_numbers=own_keys.numbers_of_mamba2,
    own_keys=own_keys.nemotron_h,
    fixed={
        "attention_bias": False, "mlp_bias": False, "mamba_proj_bias": False, "use_bias": False, "use_conv_bias": True,
        "mamba_hidden_act": "silu", "time_step_limit": [0.0, inf],
    },
    defaults={"mlp_hidden_act": "relu2"},
)  # fmt: skip
UNGATED_EXPERTS = ("ffn_gate_inp", "exp_probs_b.bias", "ffn_up_exps", "ffn_down_exps")
UNGATED_SHARED = ("ffn_up_shexp", "ffn_down_shexp")
NEMOTRON_H_MOE = replace(
    NEMOTRON_H,
    name="nemotron_h_moe",
    kinds={**GRANITEHYBRID.kinds, "moe": (*UNGATED_EXPERTS, *UNGATED_SHARED)},
    names={
        "mixer.experts.up_proj": "ffn_up_exps",
        "mixer.experts.down_proj": "ffn_down_exps",
        "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    },
    scales=DOTS1.scales,
    flags=DOTS1.flags,
    counts={"n_shared_experts": "expert_shared_count", **GROUPS},
    own_keys=own_keys.nemotron_h_with_experts,
)
NEMOTRON_H_LATENT = replace(
    NEMOTRON_H_MOE,
    kinds={**NEMOTRON_H_MOE.kinds, "moe": (*NEMOTRON_H_MOE.kinds["moe"], "ffn_latent_down", "ffn_latent_up")},
    sizes={
        **MAMBA2.sizes, "ffn_up_exps": ("n_expert", "n_ff_expert", "n_latent"),
        "ffn_down_exps": ("n_expert", "n_latent", "n_ff_expert"),
    },
    names={
        **NEMOTRON_H_MOE.names, "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up"
    },
    own_numbers=own_keys.numbers_of_latent_experts,
    own_keys=own_keys.nemotron_h_with_latent_experts,
)  # fmt: skip
# Of the same class as granitehybrid, without recurrent layers.
GRANITE_OF_HYBRIDS = replace(
    GRANITE,
    sizes=GRANITEHYBRID.sizes,
    parts=GRANITEHYBRID.parts,
    reorder=GRANITEHYBRID.reorder,
    names=GRANITEHYBRID.names,
    spellings=GRANITEHYBRID.spellings,
    own_keys=own_keys.granite_of_hybrids,
)
LORAS = {"w": "decay_rank", "a": "rate_rank", "v": "value_rank", "g": "gate_rank"}  # of RWKV-7's narrow places
RWKV7 = Architecture(
    name="rwkv7",
    block=(
        *("attn_norm", "attn_norm_2", "time_mix_ln"), *biases("attn_norm", "attn_norm_2", "time_mix_ln"),
        *(f"time_mix_{kind}" for kind in ("lerp_fused", "k_k", "k_a", "r_k", "receptance", "key", "value", "output")),
        *(f"time_mix_{kind}" for kind in ("w0", "w1", "w2", "a0", "a1", "a2", "g1", "g2")),
        *(f"channel_mix_{kind}" for kind in ("lerp_k", "key", "value")),
    ),
    not_first=tuple(f"time_mix_v{number}" for number in range(3)),
    model=("token_embd_norm", "token_embd_norm.bias", "output_norm.bias"),
    sizes={
        **{f"time_mix_{kind}1": (rank, "n_embd") for kind, rank in LORAS.items()},
        **{f"time_mix_{kind}2": ("n_embd", rank) for kind, rank in LORAS.items()},
        **{f"time_mix_{kind}": ("n_embd",) for kind in ("w0", "a0", "v0", "k_k", "k_a", "ln")},
        **{f"time_mix_{kind}": ("n_embd", "n_embd") for kind in ("receptance", "key", "value", "output")},
        "time_mix_r_k": ("n_heads", "head_dim"),
        "time_mix_lerp_fused": ("n_lerps", "one", "one", "n_embd"),
        "channel_mix_lerp_k": ("n_embd",),
        "channel_mix_key": ("n_ff", "n_embd"),
        "channel_mix_value": ("n_embd", "n_ff"),
        "attn_norm_2": ("n_embd",),
    },
    folded={"time_mix_r_k": ("n_embd",)},
    parts={f"time_mix_{kind}0": f"time_mix_{kind}2.bias" for kind in "wav"},
    stand_ins={f"blk.0.time_mix_v{number}.weight": f"blk.0.time_mix_a{number}.weight" for number in range(3)},
    left_out=r"model\.layers\.0\.attn\.v_lora\..*",
    names={
        "attn_norm": "attn_norm",
        "ffn_norm": "attn_norm_2",
        "attn.g_norm": "time_mix_ln",
        "attn.x_": "time_mix_lerp_fused",
        **{f"attn.{kind}": f"time_mix_{kind}" for kind in ("k_k", "k_a", "r_k")},
        **{f"attn.{kind}_lora.lora.0": f"time_mix_{kind}1" for kind in LORAS},
        **{f"attn.{kind}_lora.lora.2": f"time_mix_{kind}2" for kind in LORAS},
        **{f"attn.{kind[0]}_proj": f"time_mix_{kind}" for kind in ("receptance", "key", "value", "output")},
        "ffn.x_k": "channel_mix_lerp_k",
        **{f"ffn.{kind}": f"channel_mix_{kind}" for kind in ("key", "value")},
    },
    times=4,
    norm="layer",
    activation=("sqrelu",),
    attends=False,
    turns=False,
    own_numbers=own_keys.numbers_of_rwkv,
    own_keys=own_keys.narrow_places,
    fixed={"norm_first": True, "norm_bias": True, "attn": None},
    defaults={
        "num_attention_heads": 1, "max_position_embeddings": 1 << 20, "head_dim": 64, "tie_word_embeddings": False
    },
)
GPT2 = Architecture(
    name="gpt2",
    block=(*BEFORE, *biases(*BEFORE), *FUSED, *biases(*FUSED), *PLAIN, *biases(*PLAIN)),
    model=("output_norm.bias", "position_embd"),
    reorder=dict.fromkeys((*FUSED, *PLAIN), reorder.transposed),
    times=4,
    norm="layer",
    activation=GELU,
    turns=False,
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_new"},
)
GPTNEOX = Architecture(
    name="gptneox",
    block=(*BEFORE, *biases(*BEFORE), *FUSED, *biases(*FUSED), *PLAIN, *biases(*PLAIN)),
    model=("output_norm.bias",),
    reorder={"attn_qkv": reorder.by_kind, "attn_qkv.bias": reorder.by_kind},
    norm="layer",
    activation=GELU + EXACT_GELU,
    part_turns=True,
    flags={"use_parallel_residual": "use_parallel_residual"},
    defaults={"partial_rotary_factor": 0.25, "use_parallel_residual": True},
)
FALCON = Architecture(
    name="falcon",
    block=("attn_norm", "attn_norm.bias", *FUSED, *PLAIN),
    optional=("attn_norm_2", "attn_norm_2.bias"),
    model=("output_norm.bias",),
    reorder={"attn_qkv": reorder.by_kind_of_groups},
    times=4,
    norm="layer",
    activation=EXACT_GELU,
    own_keys=own_keys.layout_of_falcon,
    fixed={"alibi": False, "parallel_attn": True, "bias": False},
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu", "max_position_embeddings": 2048},
)
COMMAND_R = Architecture(
    name="command-r",
    block=("attn_norm", *APART, *GATED),
    optional=HEAD_NORMS,
    sizes={"attn_q_norm": ("n_head", "head_dim"), "attn_k_norm": ("n_head_kv", "head_dim")},
    norm="layer",
    spellings={"max_position_embeddings": "model_max_length"},
    scales={"logit_scale": "logit_scale"},
    own_keys=own_keys.not_scaled,
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "logit_scale": 0.0625},
)
COHERE2 = Architecture(
    name="cohere2",
    block=COMMAND_R.block,
    norm="layer",
    period=4,
    scales={"logit_scale": "logit_scale"},
    own_keys=own_keys.not_scaled,
    defaults=COMMAND_R.defaults,
)

ENDS = ("token_types", "token_embd_norm", "token_embd_norm.bias")  # of BERT's kind: what is outside of blocks
BERT_NORMS = ("attn_output_norm", "layer_output_norm")
BERT = Architecture(
    name="bert",
    block=(*APART, *biases(*APART), *PLAIN, *biases(*PLAIN), *BERT_NORMS, *biases(*BERT_NORMS)),
    model=(*ENDS, "position_embd"),
    encoder=True,
    prefix="bert.",
    left_out=r"embeddings\.position_ids|pooler\.dense\.(weight|bias)|cls\..*",  # what was for training only
    norm="layer",
    activation=EXACT_GELU,
    turns=False,
    fixed={"position_embedding_type": "absolute", "is_decoder": False},
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2},
)
CLASSIFIER = ("cls", "cls.bias", "cls.output", "cls.output.bias")
BERT_RANKS = replace(
    BERT,
    model=(*BERT.model, *CLASSIFIER),
    left_out=r"embeddings\.position_ids",
    names={
        "pooler.dense.weight": "cls.weight", "pooler.dense.bias": "cls.bias",
        "classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias",
    },
)  # fmt: skip
ROBERTA = replace(
    BERT,
    prefix="roberta.",
    left_out=rf"{BERT.left_out}|lm_head\..*",
    reorder={"position_embd": reorder.from_first_position},
)
ROBERTA_RANKS = replace(ROBERTA, model=(*BERT.model, *CLASSIFIER))
NOMIC_BERT = Architecture(
    name="nomic-bert",
    block=(*FUSED, *GATED, *BERT_NORMS, *biases(*BERT_NORMS)),
    optional=biases(*FUSED, *GATED),
    model=ENDS,
    encoder=True,
    left_out=r"pooler\..*|cls\..*",
    norm="layer",
    activation=("swiglu", "silu"),
    spellings={"max_position_embeddings": "max_trained_positions"},
    fixed={
        "prenorm": False, "causal": False, "parallel_block": False, "use_rms_norm": False,
        "rotary_emb_interleaved": False, "rotary_scaling_factor": None, "num_experts": 0,
    },
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-12, "type_vocab_size": 2},
)  # fmt: skip
MODERN_BERT = Architecture(
    name="modern-bert",
    block=("attn_qkv", "attn_output", "ffn_norm", *PLAIN),
    not_first=("attn_norm",),
    model=("token_embd_norm", "output_norm"),
    sizes={"ffn_up": ("n_gate_and_up", "n_embd")},
    encoder=True,
    prefix="model.",
    left_out=r"(head|decoder)\..*",
    norm="layer",
    activation=(*EXACT_GELU, "silu"),
    period=3,
    first_of_period=True,
    every_window=True,
    window_rope=True,
    own_keys=own_keys.gate_of_modern_bert,
    fixed={"attention_bias": False, "mlp_bias": False, "norm_bias": False},
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
)
MODERN_BERT_RANKS = replace(
    MODERN_BERT,
    model=(*MODERN_BERT.model, "cls", "cls.norm", "cls.output", "cls.output.bias"),
    left_out=r"decoder\..*",
    names={"classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias"},
    fixed={**MODERN_BERT.fixed, "classifier_bias": False, "classifier_activation": "gelu"},
)
GEMMA_EMBEDDING = replace(
    GEMMA3, name="gemma-embedding", encoder=True, model=("output_norm",), fixed={"use_bidirectional_attention": True}
)


def granite_hybrid(config: Table) -> Architecture:
    """Some of its class have experts, and some no recurrent layers."""
    recurrent = any(kind in RECURRENT for kind in config.get("layer_types", list))
    if config.get("num_local_experts", int, 0):
        return GRANITEHYBRID_WITH_EXPERTS if recurrent else GRANITEMOE
    return GRANITEHYBRID if recurrent else GRANITE_OF_HYBRIDS


def nemotron_h(config: Table) -> Architecture:
    """Some of its class have experts, and some of these look at a shorter vector."""
    if config.values.get("moe_latent_size"):
        return NEMOTRON_H_LATENT
    return NEMOTRON_H_MOE if "num_experts_per_tok" in config.values else NEMOTRON_H


BY_CLASS: Mapping[str, Architecture | Callable[[Table], Architecture]] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "InternLM3ForCausalLM": LLAMA,
    "Mistral3ForConditionalGeneration": MISTRAL3,  # its text model; what sees pictures is left out
    "Ministral3ForCausalLM": MISTRAL3,
    "Llama4ForCausalLM": LLAMA4,
    "Llama4ForConditionalGeneration": LLAMA4,  # as above
    "SmolLM3ForCausalLM": SMOLLM3,
    "GraniteForCausalLM": GRANITE,
    "MiniCPMForCausalLM": MINICPM,
    "InternLM2ForCausalLM": INTERNLM2,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "MixtralForCausalLM": MIXTRAL,
    "Qwen3MoeForCausalLM": QWEN3MOE,
    "OlmoeForCausalLM": OLMOE,
    "Qwen2MoeForCausalLM": QWEN2MOE,
    "GraniteMoeForCausalLM": GRANITEMOE,
    "GraniteMoeSharedForCausalLM": GRANITEMOE,
    "Ernie4_5_MoeForCausalLM": ERNIE4_5_MOE,
    "HunYuanMoEV1ForCausalLM": HUNYUAN_MOE,
    "PhiMoEForCausalLM": PHIMOE,
    "PhimoeForCausalLM": PHIMOE,
    "Dots1ForCausalLM": DOTS1,
    "Glm4MoeForCausalLM": GLM4MOE,
    "DeepseekV2ForCausalLM": DEEPSEEK2,
    "DeepseekV3ForCausalLM": DEEPSEEK3,
    "Glm4MoeLiteForCausalLM": DEEPSEEK3,
    "Mistral4ForCausalLM": MISTRAL4,
    "GptOssForCausalLM": GPT_OSS,
    "Exaone4ForCausalLM": EXAONE4,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO2,
    "Ernie4_5ForCausalLM": ERNIE4_5,
    "Ernie4_5_ForCausalLM": ERNIE4_5,
    "HunYuanDenseV1ForCausalLM": HUNYUAN_DENSE,
    "SeedOssForCausalLM": SEED_OSS,
    "Glm4ForCausalLM": GLM4,
    "BitnetForCausalLM": BITNET,
    "BitNetForCausalLM": BITNET_B158,
    "NemotronForCausalLM": NEMOTRON,
    "GemmaForCausalLM": GEMMA,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,  # as above
    "Gemma4ForCausalLM": GEMMA4,
    "Gemma4ForConditionalGeneration": GEMMA4,
    "Gemma3nForCausalLM": GEMMA3N,
    "Gemma3nForConditionalGeneration": GEMMA3N,
    "PhiForCausalLM": PHI2,
    "Phi3ForCausalLM": PHI3,
    "StableLmForCausalLM": STABLELM,
    "StableLMEpochForCausalLM": STABLELM,
    "Starcoder2ForCausalLM": STARCODER2,
    "Lfm2ForCausalLM": LFM2,
    "Lfm2MoeForCausalLM": LFM2MOE,
    "Qwen3_5ForCausalLM": QWEN35,
    "Qwen3_5ForConditionalGeneration": QWEN35,  # as above
    "Qwen3_5MoeForCausalLM": QWEN35MOE,
    "Qwen3_5MoeForConditionalGeneration": QWEN35MOE,  # as above
    "Qwen3NextForCausalLM": QWEN3NEXT,
    "MambaForCausalLM": MAMBA,
    "FalconMambaForCausalLM": FALCON_MAMBA,
    "Mamba2ForCausalLM": MAMBA2,
    "FalconH1ForCausalLM": FALCON_H1,
    "GraniteMoeHybridForCausalLM": granite_hybrid,
    "NemotronHForCausalLM": nemotron_h,
    "RWKV7ForCausalLM": RWKV7,
    "GPT2LMHeadModel": GPT2,
    "GPTNeoXForCausalLM": GPTNEOX,
    "FalconForCausalLM": FALCON,
    "RWForCausalLM": FALCON,
    "CohereForCausalLM": COMMAND_R,
    "Cohere2ForCausalLM": COHERE2,
    "BertModel": BERT,
    "BertForMaskedLM": BERT,
    "BertForPreTraining": BERT,
    "BertForSequenceClassification": BERT_RANKS,
    "RobertaModel": ROBERTA,
    "RobertaForMaskedLM": ROBERTA,
    "RobertaForSequenceClassification": ROBERTA_RANKS,
    "XLMRobertaModel": ROBERTA,
    "XLMRobertaForMaskedLM": ROBERTA,
    "XLMRobertaForSequenceClassification": ROBERTA_RANKS,
    "NomicBertModel": NOMIC_BERT,
    "ModernBertModel": MODERN_BERT,
    "ModernBertForMaskedLM": MODERN_BERT,
    "ModernBertForSequenceClassification": MODERN_BERT_RANKS,
    "Gemma3TextModel": GEMMA_EMBEDDING,
}

BY_TEXT_MODEL = {("Mistral3ForConditionalGeneration", "mistral4"): MISTRAL4}  # classes that have several


def find(config: Table) -> tuple[Architecture, Table]:
    """The architecture that config.json names, and the table of its numbers, with defaults.

    Raises Unsupported naming the architecture, and one that is known and has a similar name.
    """
    classes = config.get("architectures", list)
    name = classes[0] if classes else None
    if not isinstance(name, str) or name not in BY_CLASS:
        nearest = get_close_matches(str(name), BY_CLASS, n=1, cutoff=0.0)[0]
        what = f"{printable(repr(name), 80)} is not supported; the nearest that is: {nearest}"
        raise config.error("architectures", what, Unsupported)
    text_model = config.table("text_config").get("model_type", str, "")
    found = BY_TEXT_MODEL.get((name, text_model), BY_CLASS[name])
    architecture = found if isinstance(found, Architecture) else found(config)
    return architecture, spelled(config, architecture.spellings, architecture.defaults)
