"""Grok, whose checkpoints have keys of their own for the scales. YaRN, which Grok 2 has, is not converted."""

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import EXPERTS, GATED_FFN, GELU, PRE_NORMS, SEPARATE_QKV
from localinfer.conversion.architectures.experts import MIXTRAL
from localinfer.conversion.metadata import expert_metadata

GROK = Architecture(
    name="grok",
    layer_tensors=(*PRE_NORMS, "attn_output_norm", "post_ffw_norm", *SEPARATE_QKV, *EXPERTS),
    optional_layer_tensors=GATED_FFN,
    tensor_names={
        **MIXTRAL.tensor_names,
        "pre_attn_norm": "attn_norm", "post_attn_norm": "attn_output_norm", "pre_moe_norm": "ffn_norm",
        "post_moe_norm": "post_ffw_norm",
    },
    activations=(*GELU, "gelu"),
    float_keys={
        "attn_output_multiplier": "attention.output_scale", "embedding_multiplier_scale": "embedding_scale",
        "output_multiplier_scale": "logit_scale", "attn_logit_softcapping": "attn_logit_softcapping",
        "router_logit_softcapping": "router_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
    },
    metadata=expert_metadata.experts,
    required_values={"rope_type": None},
    defaults={"attn_logit_softcapping": 30.0, "router_logit_softcapping": 30.0},
)  # fmt: skip

BY_CLASS = {"GrokForCausalLM": GROK, "Grok1ForCausalLM": GROK}
