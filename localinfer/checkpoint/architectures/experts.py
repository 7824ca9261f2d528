"""Mixtures of experts that have no kin in a file of their own."""

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import (
    APART,
    BEFORE,
    EXPERTS,
    GATED,
    GROUPS,
    HEAD_NORMS,
    NEIGHBOURS,
    SHARED,
    W123,
    biases,
)
from localinfer.checkpoint.stored import reorder

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
OLMOE = Architecture(
    name="olmoe",
    block=(*BEFORE, *APART, *HEAD_NORMS, *EXPERTS),
    sizes={"attn_q_norm": ("n_q",), "attn_k_norm": ("n_kv",)},
    own_keys=own_keys.experts,
    fixed={"norm_topk_prob": False},
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
BY_CLASS = {
    "MixtralForCausalLM": MIXTRAL,
    "Llama4ForCausalLM": LLAMA4,
    "Llama4ForConditionalGeneration": LLAMA4,
    "OlmoeForCausalLM": OLMOE,
    "Ernie4_5_MoeForCausalLM": ERNIE4_5_MOE,
    "HunYuanMoEV1ForCausalLM": HUNYUAN_MOE,
    "Dots1ForCausalLM": DOTS1,
    "GptOssForCausalLM": GPT_OSS,
}
