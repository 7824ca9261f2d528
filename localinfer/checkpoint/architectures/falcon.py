"""Falcon: the first, with one norm for both branches, and those with states."""

from dataclasses import replace
from math import inf

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, BEFORE, EXACT_GELU, FUSED, GATED, PLAIN
from localinfer.checkpoint.architectures.mamba import MAMBA, MAMBA2, STATES
from localinfer.checkpoint.stored import reorder

FALCON = Architecture(
    name="falcon",
    block=("attn_norm", "attn_norm.bias", *FUSED, *PLAIN),
    optional=("attn_norm_2", "attn_norm_2.bias"),
    model=("output_norm.bias",),
    reorder={"attn_qkv": reorder.by_kind_of_groups},
    times=4,
    norm="layer",
    activation=EXACT_GELU,
    own_keys=own_keys.layout_of_falcon,
    fixed={"alibi": False, "parallel_attn": True, "bias": False},
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu", "max_position_embeddings": 2048},
)
FALCON_MAMBA = replace(MAMBA, own_keys=own_keys.scans_of_normed)
FALCON_H1 = Architecture(
    name="falcon-h1",
    block=(*BEFORE, *APART, *STATES, *GATED),
    optional=("ssm_norm",),
    bare=("ssm_a", "ssm_d", "ffn_norm"),
    sizes=MAMBA2.sizes,
    folded=MAMBA2.folded,
    multipliers=("embedding_multiplier",),
    own_numbers=own_keys.numbers_of_falcon_h1,
    own_keys=own_keys.states,
    fixed={
        "attention_bias": False, "mlp_bias": False, "projectors_bias": False, "mamba_conv_bias": True,
        "mamba_proj_bias": False, "mamba_norm_before_gate": False, "time_step_limit": [0.0, inf],
    },
)  # fmt: skip
BY_CLASS = {
    "FalconForCausalLM": FALCON,
    "RWForCausalLM": FALCON,
    "FalconMambaForCausalLM": FALCON_MAMBA,
    "FalconH1ForCausalLM": FALCON_H1,
}
