"""Falcon, Falcon Mamba and Falcon-H1."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXACT_GELU,
    FUSED_QKV,
    GATED_FFN,
    PRE_NORMS,
    SEPARATE_QKV,
    UNGATED_FFN,
)
from localinfer.conversion.architectures.mamba import MAMBA, MAMBA2, SSM_TENSORS
from localinfer.conversion.metadata import architecture_metadata, recurrent_metadata
from localinfer.conversion.tensor_formats import reorder

FALCON = Architecture(
    name="falcon",
    layer_tensors=("attn_norm", "attn_norm.bias", *FUSED_QKV, *UNGATED_FFN),
    optional_layer_tensors=("attn_norm_2", "attn_norm_2.bias"),
    model_tensors=("output_norm.bias",),
    reorder={"attn_qkv": reorder.group_gqa_qkv},
    ffn_multiplier=4,
    norm="layer",
    activations=EXACT_GELU,
    metadata=architecture_metadata.falcon_layout,
    required_values={"alibi": False, "parallel_attn": True, "bias": False},
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu", "max_position_embeddings": 2048},
)
FALCON_MAMBA = replace(MAMBA, metadata=recurrent_metadata.mamba_with_norms)
FALCON_H1 = Architecture(
    name="falcon-h1",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *SSM_TENSORS, *GATED_FFN),
    optional_layer_tensors=("ssm_norm",),
    no_weight_suffix=("ssm_a", "ssm_d", "ffn_norm"),
    shapes=MAMBA2.shapes,
    final_shapes=MAMBA2.final_shapes,
    fused_sources={"output": "token_embd"},  # if they are shared, but have different multipliers
    folded_multipliers=("embedding_multiplier",),
    read_hparams=recurrent_metadata.falcon_h1_hparams,
    metadata=recurrent_metadata.ssm_shape,
    required_values={
        "attention_bias": False, "mlp_bias": False, "projectors_bias": False, "mamba_conv_bias": True,
        "mamba_proj_bias": False, "mamba_norm_before_gate": False,
    },
)  # fmt: skip
BY_CLASS = {
    "FalconForCausalLM": FALCON,
    "RWForCausalLM": FALCON,
    "FalconMambaForCausalLM": FALCON_MAMBA,
    "FalconH1ForCausalLM": FALCON_H1,
}
