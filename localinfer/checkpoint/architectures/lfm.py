"""LFM2: short convolutions between the layers that attend."""

from dataclasses import replace

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, BEFORE, EXPERTS, GATED, HEAD_NORMS, W123

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
BY_CLASS = {
    "Lfm2ForCausalLM": LFM2,
    "Lfm2MoeForCausalLM": LFM2MOE,
}
