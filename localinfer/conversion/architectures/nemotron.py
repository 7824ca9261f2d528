"""Nemotron: dense models, and hybrids in which each layer is Mamba-2, attention, an MLP or experts."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXPERT_GROUPS,
    INTERLEAVED_ROPE,
    PRE_NORMS,
    RELU2,
    SEPARATE_QKV,
    UNGATED_FFN,
    biases,
)
from localinfer.conversion.architectures.experts import DOTS1
from localinfer.conversion.architectures.granite import GRANITEHYBRID
from localinfer.conversion.architectures.mamba import MAMBA2
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.metadata import attention_metadata, recurrent_metadata

NEMOTRON = Architecture(
    name="nemotron",
    layer_tensors=(*PRE_NORMS, *biases(*PRE_NORMS), *SEPARATE_QKV, *UNGATED_FFN),
    optional_layer_tensors=biases(*SEPARATE_QKV, *UNGATED_FFN),
    model_tensors=("output_norm.bias",),
    norm="layer",
    norm_offset=1.0,
    activations=RELU2,
    has_partial_rope=True,
    metadata=attention_metadata.rope_without_scaling,
    defaults={"partial_rotary_factor": 0.5},
)
NEMOTRON_H = Architecture(
    name="nemotron_h",
    layer_tensors=("attn_norm",),
    layer_type_tensors={**GRANITEHYBRID.layer_type_tensors, "mlp": UNGATED_FFN},
    shapes=MAMBA2.shapes,
    final_shapes=MAMBA2.final_shapes,
    reorder=INTERLEAVED_ROPE,  # unnecessary without rope, but llama.cpp does it
    activations=RELU2,
    has_rope=False,
    norm="layer",  # as the epsilon's name suggests, but they are RMS norms
    key_aliases={"hidden_act": "mlp_hidden_act", "head_dim": "attention_head_dim"},
    read_hparams=recurrent_metadata.mamba2_hparams,
    metadata=recurrent_metadata.nemotron_h,
    required_values={
        "attention_bias": False, "mlp_bias": False, "mamba_proj_bias": False, "use_bias": False, "use_conv_bias": True,
        "mamba_hidden_act": "silu",
    },
    defaults={"mlp_hidden_act": "relu2"},
)  # fmt: skip
UNGATED_EXPERTS = ("ffn_gate_inp", "exp_probs_b.bias", "ffn_up_exps", "ffn_down_exps")
UNGATED_SHARED = ("ffn_up_shexp", "ffn_down_shexp")
NEMOTRON_H_MOE = replace(
    NEMOTRON_H,
    name="nemotron_h_moe",
    layer_type_tensors={**NEMOTRON_H.layer_type_tensors, "moe": (*UNGATED_EXPERTS, *UNGATED_SHARED)},
    tensor_names={
        "mixer.experts.up_proj": "ffn_up_exps",
        "mixer.experts.down_proj": "ffn_down_exps",
        "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    },
    float_keys=DOTS1.float_keys,
    bool_keys=DOTS1.bool_keys,
    int_keys={"n_shared_experts": "expert_shared_count", **EXPERT_GROUPS},
    metadata=recurrent_metadata.nemotron_h_moe,
)
NEMOTRON_H_LATENT = replace(
    NEMOTRON_H_MOE,
    layer_type_tensors={
        **NEMOTRON_H_MOE.layer_type_tensors,
        "moe": (*NEMOTRON_H_MOE.layer_type_tensors["moe"], "ffn_latent_down", "ffn_latent_up"),
    },
    shapes={
        **MAMBA2.shapes, "ffn_up_exps": ("n_expert", "n_ff_expert", "n_latent"),
        "ffn_down_exps": ("n_expert", "n_latent", "n_ff_expert"),
    },
    tensor_names={
        **NEMOTRON_H_MOE.tensor_names, "mixer.fc1_latent_proj": "ffn_latent_down",
        "mixer.fc2_latent_proj": "ffn_latent_up",
    },
    read_hparams=recurrent_metadata.latent_moe_hparams,
    metadata=recurrent_metadata.nemotron_h_latent_moe,
)  # fmt: skip


def nemotron_h(config: JsonObject) -> Architecture:
    """Return the architecture: models of this class may have layers with experts, some of which use latent vectors.

    The layer types decide: transformers 5 saves keys about experts for models without experts, too.
    """
    kinds = config.get("layers_block_type", list, config.get("layer_types", list, []))
    if "moe" not in kinds and "E" not in config.get("hybrid_override_pattern", str, ""):
        return NEMOTRON_H
    return NEMOTRON_H_LATENT if config.values.get("moe_latent_size") else NEMOTRON_H_MOE


def text_model_of_nemotron_vl(config: JsonObject) -> Architecture:
    """Return the architecture of the text model of Nemotron Nano 2 VL."""
    return nemotron_h(config.child("llm_config"))


BY_CLASS: Mapping[str, Architecture | Callable[[JsonObject], Architecture]] = {
    "NemotronForCausalLM": NEMOTRON,
    "NemotronHForCausalLM": nemotron_h,
    "NemotronH_Nano_VL_V2": text_model_of_nemotron_vl,
}
