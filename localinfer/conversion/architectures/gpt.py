"""GPT-2 and later models with LayerNorm: BLOOM, MPT, GPT-NeoX, StableLM, StarCoder and StarCoder2, CodeShell, Jais and
Jais 2."""

from dataclasses import replace
from functools import partial

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXACT_GELU,
    FUSED_QKV,
    GATED_FFN,
    GELU,
    HEAD_NORMS,
    PRE_NORMS,
    RELU2,
    SEPARATE_QKV,
    UNGATED_FFN,
    biases,
)
from localinfer.conversion.metadata import architecture_metadata, attention_metadata
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
STARCODER = replace(
    GPT2,
    name="starcoder",
    reorder={},
    required_values={**GPT2.required_values, "multi_query": True},
    defaults={**GPT2.defaults, "hidden_act": "gelu_pytorch_tanh", "multi_query": True},
)
CODESHELL = replace(
    GPT2,
    name="codeshell",
    model_tensors=("output_norm.bias",),
    reorder={},
    has_rope=True,
    key_aliases={"num_key_value_heads": "num_query_groups"},
    required_values={**GPT2.required_values, "position_embedding_type": "rope", "group_query_attention": True},
    defaults={"hidden_act": "gelu_pytorch_tanh"},
)
JAIS = Architecture(
    name="jais",
    layer_tensors=(*PRE_NORMS, *FUSED_QKV, *GATED_FFN, *biases(*PRE_NORMS, *FUSED_QKV, *GATED_FFN)),
    model_tensors=("output_norm.bias",),
    fused_sources={"output": "token_embd"},  # whose factors differ
    reorder=dict.fromkeys((*FUSED_QKV, *GATED_FFN), reorder.transpose),
    ignored_tensors=r"transformer\.relative_pe\.slopes",
    norm="layer",
    activations=("swiglu",),
    has_rope=False,
    read_hparams=architecture_metadata.jais_hparams,
    metadata=architecture_metadata.jais_alibi,
    required_values={
        "position_embedding_type": "alibi", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
)  # fmt: skip
BLOOM = Architecture(
    name="bloom",
    layer_tensors=GPT2.layer_tensors,
    model_tensors=("token_embd_norm", "token_embd_norm.bias", "output_norm.bias"),
    reorder={"attn_qkv": reorder.group_qkv, "attn_qkv.bias": reorder.group_qkv},
    tensor_prefix="transformer.",
    ffn_multiplier=4,
    norm="layer",
    has_rope=False,
    key_aliases={"hidden_size": "n_embed", "max_position_embeddings": "seq_length"},
    required_values={"apply_residual_connection_post_layernorm": False},
    defaults={"tie_word_embeddings": True, "max_position_embeddings": 2048},
)
MPT = Architecture(
    name="mpt",
    layer_tensors=(*PRE_NORMS, *FUSED_QKV, *UNGATED_FFN),
    ffn_multiplier=4,
    norm="layer",
    has_rope=False,
    key_aliases={
        "hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len",
    },
    metadata=attention_metadata.mpt,
    required_values={"expansion_ratio": 4, "no_bias": True, "embedding_fraction": 1.0},
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5},
)  # fmt: skip
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
JAIS2 = Architecture(
    name="jais2",
    layer_tensors=(*PRE_NORMS, *biases(*PRE_NORMS), *SEPARATE_QKV, *UNGATED_FFN),
    optional_layer_tensors=biases(*SEPARATE_QKV, *UNGATED_FFN),
    model_tensors=("output_norm.bias",),
    norm="layer",
    activations=RELU2,
)
BY_CLASS = {
    "GPT2LMHeadModel": GPT2,
    "GPTBigCodeForCausalLM": STARCODER,
    "CodeShellForCausalLM": CODESHELL,
    "Jais2ForCausalLM": JAIS2,
    "JAISLMHeadModel": JAIS,
    "BloomForCausalLM": BLOOM,
    "BloomModel": BLOOM,
    "MPTForCausalLM": MPT,
    "MptForCausalLM": MPT,
    "GPTNeoXForCausalLM": GPTNEOX,
    "StableLmForCausalLM": STABLELM,
    "StableLMEpochForCausalLM": STABLELM,
    "Starcoder2ForCausalLM": STARCODER2,
}
