"""Kolibri 1, whose checkpoints have other names for the norms after the branches and for the router's bias."""

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXPERTS,
    HEAD_NORMS,
    POST_NORMS,
    PRE_NORMS,
    SEPARATE_QKV,
    SHARED_EXPERTS,
)
from localinfer.conversion.metadata import expert_metadata

KOLIBRI1 = Architecture(
    name="kolibri1",
    name_map_architecture="dots1",
    layer_tensors=(
        *PRE_NORMS, *POST_NORMS, *SEPARATE_QKV, *HEAD_NORMS, *EXPERTS, *SHARED_EXPERTS, "exp_probs_b.bias",
    ),
    tensor_names={
        "post_attn_norm": "post_attention_norm", "post_ffn_norm": "post_ffw_norm",
        "moe.router.expert_bias": "exp_probs_b.bias",
    },
    window_period=5,
    writes_window_flags=True,
    bool_keys={"norm_topk_prob": "expert_weights_norm"},
    metadata=expert_metadata.experts,
)  # fmt: skip
BY_CLASS = {"Kolibri1ForCausalLM": KOLIBRI1}
