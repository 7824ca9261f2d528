"""GPT-2 and later models with LayerNorm: GPT-NeoX, StableLM, StarCoder2."""

from functools import partial

from localinfer.conversion import architecture_metadata
from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXACT_GELU,
    FUSED_QKV,
    GATED_FFN,
    GELU,
    HEAD_NORMS,
    PRE_NORMS,
    SEPARATE_QKV,
    UNGATED_FFN,
    biases,
)
from localinfer.conversion.tensor_formats import reorder

GPT2 = Architecture(
    name="gpt2",
    layer_tensors=(
        *PRE_NORMS,
        *biases(*PRE_NORMS),
        *FUSED_QKV,
        *biases(*FUSED_QKV),
        *UNGATED_FFN,
        *biases(*UNGATED_FFN),
    ),
    model_tensors=("output_norm.bias", "position_embd"),
    reorder=dict.fromkeys((*FUSED_QKV, *UNGATED_FFN), reorder.transpose),
    ffn_multiplier=4,
    norm="layer",
    activations=GELU + EXACT_GELU,
    metadata=partial(architecture_metadata.activation, usual=GELU),
    has_rope=False,
    required_values={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_new"},
)
GPTNEOX = Architecture(
    name="gptneox",
    layer_tensors=(
        *PRE_NORMS,
        *biases(*PRE_NORMS),
        *FUSED_QKV,
        *UNGATED_FFN,
        *biases(*UNGATED_FFN),
    ),
    optional_layer_tensors=biases(*FUSED_QKV),
    model_tensors=("output_norm.bias",),
    reorder={"attn_qkv": reorder.group_qkv, "attn_qkv.bias": reorder.group_qkv},
    norm="layer",
    activations=EXACT_GELU + GELU,
    metadata=partial(architecture_metadata.activation, usual=EXACT_GELU),
    has_partial_rope=True,
    bool_keys={"use_parallel_residual": "use_parallel_residual"},
    defaults={"partial_rotary_factor": 0.25, "use_parallel_residual": True},
)
STABLELM = Architecture(
    name="stablelm",
    layer_tensors=("attn_norm", "attn_norm.bias", *SEPARATE_QKV, *GATED_FFN),
    optional_layer_tensors=("ffn_norm", "ffn_norm.bias", *biases("attn_q", "attn_k", "attn_v"), *HEAD_NORMS),
    model_tensors=("output_norm.bias",),
    shapes={"attn_q_norm": ("n_head", "head_dim"), "attn_k_norm": ("n_head_kv", "head_dim")},
    norm="layer",
    has_partial_rope=True,
    bool_keys={"use_parallel_residual": "use_parallel_residual"},
    defaults={"partial_rotary_factor": 0.25, "use_parallel_residual": False},
)
STARCODER2 = Architecture(
    name="starcoder2",
    layer_tensors=(*PRE_NORMS, *biases(*PRE_NORMS), *SEPARATE_QKV, *UNGATED_FFN),
    optional_layer_tensors=biases(*SEPARATE_QKV, *UNGATED_FFN),
    model_tensors=("output_norm.bias",),
    norm="layer",
    activations=GELU + EXACT_GELU,
    metadata=partial(architecture_metadata.activation, usual=GELU),
    may_have_window=True,
    defaults={"tie_word_embeddings": True},
)
BY_CLASS = {
    "GPT2LMHeadModel": GPT2,
    "GPTNeoXForCausalLM": GPTNEOX,
    "StableLmForCausalLM": STABLELM,
    "StableLMEpochForCausalLM": STABLELM,
    "Starcoder2ForCausalLM": STARCODER2,
}
