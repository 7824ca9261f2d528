"""LFM2: short convolution layers between attention layers. LFM2-VL and LFM2-Audio have the same text model."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import EXPERTS, GATED_FFN, HEAD_NORMS, PRE_NORMS, SEPARATE_QKV, W123
from localinfer.conversion.metadata import recurrent_metadata

LFM2 = Architecture(
    name="lfm2",
    layer_tensors=(*PRE_NORMS, *GATED_FFN),
    layer_type_tensors={
        "conv": ("shortconv.in_proj", "shortconv.conv", "shortconv.out_proj"),
        "full_attention": (*SEPARATE_QKV, *HEAD_NORMS),
    },
    output_norm="token_embd_norm",
    read_hparams=recurrent_metadata.lfm2_hparams,
    metadata=recurrent_metadata.short_convolutions,
    required_values={"conv_bias": False},
    defaults={"tie_word_embeddings": True, "rope_theta": 1_000_000.0},
)
LFM2MOE = replace(
    LFM2,
    name="lfm2moe",
    layer_tensors=PRE_NORMS,
    moe_tensors=(*EXPERTS, "exp_probs_b.bias"),
    dense_tensors=GATED_FFN,
    tensor_names={
        **{f"feed_forward.experts.{old}": new for old, new in zip(W123, EXPERTS[1:], strict=True)},
        "feed_forward.expert_bias": "exp_probs_b.bias",
    },
    int_keys={"first_k_dense_replace": "leading_dense_block_count"},
    read_hparams=recurrent_metadata.lfm2_moe_hparams,
    metadata=recurrent_metadata.short_convolutions_moe,
    required_values={"conv_bias": False, "use_expert_bias": True, "norm_topk_prob": True, "routed_scaling_factor": 1.0},
)
BY_CLASS = {
    "Lfm2ForCausalLM": LFM2,
    "Lfm2VlForConditionalGeneration": LFM2,
    "Lfm2AudioForConditionalGeneration": LFM2,
    "Lfm2MoeForCausalLM": LFM2MOE,
}
