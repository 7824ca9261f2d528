"""Granite: dense, with experts, and with recurrent layers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import (
    APART,
    BEFORE,
    EXPERTS,
    FUSED_EXPERTS,
    FUSED_SIZES,
    GATED,
    HALVES,
    NEIGHBOURS,
    SHARED,
)
from localinfer.checkpoint.architectures.llama import LLAMA
from localinfer.checkpoint.architectures.mamba import MAMBA2, STATES
from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.stored import reorder

GRANITE = Architecture(
    name="granite",
    block=LLAMA.block,
    optional=LLAMA.optional,
    reorder=NEIGHBOURS,
    scales={
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    },
    defaults={
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
)
GRANITEMOE = Architecture(
    name="granitemoe",
    block=(*BEFORE, *APART, *EXPERTS),
    optional=SHARED,
    sizes=FUSED_SIZES,
    parts={**FUSED_EXPERTS, **dict.fromkeys(("ffn_gate_shexp", "ffn_up_shexp"), "ffn_gate_up_shexp")},
    reorder={
        **NEIGHBOURS, **HALVES, "ffn_gate_shexp": reorder.first_half, "ffn_up_shexp": reorder.second_half
    },
    names={
        "block_sparse_moe.input_linear": "ffn_gate_up_exps",
        "shared_mlp.input_linear": "ffn_gate_up_shexp",
    },
    scales=GRANITE.scales,
    own_keys=own_keys.experts_of_granite,
    defaults=GRANITE.defaults,
)
GRANITEHYBRID = Architecture(
    name="granitehybrid",
    block=(*BEFORE, *GATED),
    kinds={"linear_attention": (*STATES, "ssm_norm"), "full_attention": APART},
    sizes={**MAMBA2.sizes, "ffn_gate_up": ("n_gate_and_up", "n_embd")},
    folded=MAMBA2.folded,
    parts=dict.fromkeys(("ffn_gate", "ffn_up"), "ffn_gate_up"),
    reorder={**NEIGHBOURS, "ffn_gate": reorder.first_half, "ffn_up": reorder.second_half},
    names={"shared_mlp.input_linear": "ffn_gate_up", "shared_mlp.output_linear": "ffn_down"},
    spellings={"intermediate_size": "shared_intermediate_size"},
    scales=GRANITE.scales,
    own_numbers=own_keys.numbers_of_mamba2,
    own_keys=own_keys.granite_hybrid,
    fixed={"attention_bias": False, "mamba_conv_bias": True, "mamba_proj_bias": False, "time_step_limit": [0.0, inf]},
    defaults=GRANITE.defaults,
)
GRANITEHYBRID_WITH_EXPERTS = replace(
    GRANITEHYBRID,
    block=(*BEFORE, *EXPERTS),
    optional=SHARED,
    sizes={**MAMBA2.sizes, **FUSED_SIZES},
    parts=GRANITEMOE.parts,
    reorder=GRANITEMOE.reorder,
    names=GRANITEMOE.names,
    spellings={},
)
# Of the same class as granitehybrid, without recurrent layers.
GRANITE_OF_HYBRIDS = replace(
    GRANITE,
    sizes=GRANITEHYBRID.sizes,
    parts=GRANITEHYBRID.parts,
    reorder=GRANITEHYBRID.reorder,
    names=GRANITEHYBRID.names,
    spellings=GRANITEHYBRID.spellings,
    own_keys=own_keys.granite_of_hybrids,
)
RECURRENT = ("linear_attention", "mamba")  # words for kinds of layers


def granite_hybrid(config: Table) -> Architecture:
    """Some of its class have experts, and some no recurrent layers."""
    recurrent = any(kind in RECURRENT for kind in config.get("layer_types", list))
    if config.get("num_local_experts", int, 0):
        return GRANITEHYBRID_WITH_EXPERTS if recurrent else GRANITEMOE
    return GRANITEHYBRID if recurrent else GRANITE_OF_HYBRIDS


BY_CLASS: Mapping[str, Architecture | Callable[[Table], Architecture]] = {
    "GraniteForCausalLM": GRANITE,
    "GraniteMoeForCausalLM": GRANITEMOE,
    "GraniteMoeSharedForCausalLM": GRANITEMOE,
    "GraniteMoeHybridForCausalLM": granite_hybrid,
}
