"""Phi-2, Phi-3 and Phi-MoE."""

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXPERTS,
    FUSED_QKV,
    GELU,
    PRE_NORMS,
    SEPARATE_QKV,
    UNGATED_FFN,
    W123,
    biases,
)
from localinfer.conversion.metadata import architecture_metadata, attention_metadata

PHI2 = Architecture(
    name="phi2",
    layer_tensors=(
        "attn_norm",
        "attn_norm.bias",
        *SEPARATE_QKV,
        *biases(*SEPARATE_QKV),
        *UNGATED_FFN,
        *biases(*UNGATED_FFN),
    ),
    model_tensors=("output_norm.bias", "output.bias"),
    norm="layer",
    activations=GELU,
    has_partial_rope=True,
    required_values={"qk_layernorm": False},
    defaults={"partial_rotary_factor": 0.5},
)
PHI3 = Architecture(
    name="phi3",
    layer_tensors=(*PRE_NORMS, *FUSED_QKV, *UNGATED_FFN),
    shapes={"ffn_up": ("n_gate_and_up", "n_embd")},
    has_partial_rope=True,
    window_period=0,
    metadata=attention_metadata.original_context,
)
PHIMOE = Architecture(
    name="phimoe",
    layer_tensors=(*PRE_NORMS, *biases(*PRE_NORMS), *SEPARATE_QKV, *EXPERTS),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    model_tensors=("output_norm.bias",),
    optional_model_tensors=("output.bias",),
    tensor_names={f"block_sparse_moe.experts.{old}": new for old, new in zip(W123, EXPERTS[1:], strict=True)},
    metadata=architecture_metadata.phi_experts,
    may_have_window=True,
    required_values={"router_jitter_noise": 0.01, "num_experts_per_tok": 2},
)
BY_CLASS = {
    "PhiForCausalLM": PHI2,
    "Phi3ForCausalLM": PHI3,
    "PhiMoEForCausalLM": PHIMOE,
    "PhimoeForCausalLM": PHIMOE,
}
