"""GPT-2, and what kept its norms with a mean: GPT-NeoX, StableLM, StarCoder2."""

from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import (
    APART,
    BEFORE,
    EXACT_GELU,
    FUSED,
    GATED,
    GELU,
    HEAD_NORMS,
    PLAIN,
    biases,
)
from localinfer.checkpoint.stored import reorder

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
BY_CLASS = {
    "GPT2LMHeadModel": GPT2,
    "GPTNeoXForCausalLM": GPTNEOX,
    "StableLmForCausalLM": STABLELM,
    "StableLMEpochForCausalLM": STABLELM,
    "Starcoder2ForCausalLM": STARCODER2,
}
