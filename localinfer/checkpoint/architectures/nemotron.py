"""Nemotron: dense, and with blocks that are each a state, attention, a network or experts."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, BEFORE, GROUPS, NEIGHBOURS, PLAIN, RELU2, biases
from localinfer.checkpoint.architectures.experts import DOTS1
from localinfer.checkpoint.architectures.granite import GRANITEHYBRID
from localinfer.checkpoint.architectures.mamba import MAMBA2
from localinfer.checkpoint.folder import Table

NEMOTRON = Architecture(
    name="nemotron",
    block=(*BEFORE, *biases(*BEFORE), *APART, *PLAIN),
    optional=biases(*APART, *PLAIN),
    model=("output_norm.bias",),
    norm="layer",
    norm_offset=1.0,
    activation=RELU2,
    part_turns=True,
    own_keys=own_keys.not_scaled,
    defaults={"partial_rotary_factor": 0.5},
)
NEMOTRON_H = Architecture(
    name="nemotron_h",
    block=("attn_norm",),
    kinds={**GRANITEHYBRID.kinds, "mlp": PLAIN},
    sizes=MAMBA2.sizes,
    folded=MAMBA2.folded,
    reorder=NEIGHBOURS,  # which nothing asks for, as nothing turns, but llama.cpp does so
    activation=RELU2,
    turns=False,
    norm="layer",  # the epsilon's name says so, but they are by the mean square
    spellings={"hidden_act": "mlp_hidden_act", "head_dim": "attention_head_dim"},
    own_numbers=own_keys.numbers_of_mamba2,
    own_keys=own_keys.nemotron_h,
    fixed={
        "attention_bias": False, "mlp_bias": False, "mamba_proj_bias": False, "use_bias": False, "use_conv_bias": True,
        "mamba_hidden_act": "silu", "time_step_limit": [0.0, inf],
    },
    defaults={"mlp_hidden_act": "relu2"},
)  # fmt: skip
UNGATED_EXPERTS = ("ffn_gate_inp", "exp_probs_b.bias", "ffn_up_exps", "ffn_down_exps")
UNGATED_SHARED = ("ffn_up_shexp", "ffn_down_shexp")
NEMOTRON_H_MOE = replace(
    NEMOTRON_H,
    name="nemotron_h_moe",
    kinds={**GRANITEHYBRID.kinds, "moe": (*UNGATED_EXPERTS, *UNGATED_SHARED)},
    names={
        "mixer.experts.up_proj": "ffn_up_exps",
        "mixer.experts.down_proj": "ffn_down_exps",
        "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    },
    scales=DOTS1.scales,
    flags=DOTS1.flags,
    counts={"n_shared_experts": "expert_shared_count", **GROUPS},
    own_keys=own_keys.nemotron_h_with_experts,
)
NEMOTRON_H_LATENT = replace(
    NEMOTRON_H_MOE,
    kinds={**NEMOTRON_H_MOE.kinds, "moe": (*NEMOTRON_H_MOE.kinds["moe"], "ffn_latent_down", "ffn_latent_up")},
    sizes={
        **MAMBA2.sizes, "ffn_up_exps": ("n_expert", "n_ff_expert", "n_latent"),
        "ffn_down_exps": ("n_expert", "n_latent", "n_ff_expert"),
    },
    names={
        **NEMOTRON_H_MOE.names, "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up"
    },
    own_numbers=own_keys.numbers_of_latent_experts,
    own_keys=own_keys.nemotron_h_with_latent_experts,
)  # fmt: skip


def nemotron_h(config: Table) -> Architecture:
    """Some of its class have experts, and some of these look at a shorter vector."""
    if config.values.get("moe_latent_size"):
        return NEMOTRON_H_LATENT
    return NEMOTRON_H_MOE if "num_experts_per_tok" in config.values else NEMOTRON_H


BY_CLASS: Mapping[str, Architecture | Callable[[Table], Architecture]] = {
    "NemotronForCausalLM": NEMOTRON,
    "NemotronHForCausalLM": nemotron_h,
}
