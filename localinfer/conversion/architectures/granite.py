"""Granite: dense, mixture of experts, and hybrids with recurrent layers."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXPERTS,
    FUSED_EXPERT_SHAPES,
    FUSED_EXPERTS,
    GATED_FFN,
    INTERLEAVED_ROPE,
    PRE_NORMS,
    SEPARATE_QKV,
    SHARED_EXPERTS,
    SPLIT_EXPERTS,
    biases,
)
from localinfer.conversion.architectures.llama import LLAMA
from localinfer.conversion.architectures.mamba import MAMBA2, SSM_TENSORS
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.metadata import attention_metadata, expert_metadata, recurrent_metadata
from localinfer.conversion.tensor_formats import reorder
from localinfer.errors import UnsupportedError

GRANITE = Architecture(
    name="granite",
    layer_tensors=LLAMA.layer_tensors,
    optional_layer_tensors=LLAMA.optional_layer_tensors,
    reorder=INTERLEAVED_ROPE,
    float_keys={
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
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *EXPERTS),
    optional_layer_tensors=(*biases(*SEPARATE_QKV), *SHARED_EXPERTS),
    shapes=FUSED_EXPERT_SHAPES,
    fused_sources={**FUSED_EXPERTS, **dict.fromkeys(("ffn_gate_shexp", "ffn_up_shexp"), "ffn_gate_up_shexp")},
    reorder={
        **INTERLEAVED_ROPE,
        **SPLIT_EXPERTS,
        "ffn_gate_shexp": reorder.first_half,
        "ffn_up_shexp": reorder.second_half,
    },
    tensor_names={
        "block_sparse_moe.input_linear": "ffn_gate_up_exps",
        "shared_mlp.input_linear": "ffn_gate_up_shexp",
    },
    float_keys=GRANITE.float_keys,
    metadata=expert_metadata.granite_experts,
    defaults=GRANITE.defaults,
)
GRANITE_SWA = replace(
    GRANITE,
    name="granite_swa",
    layer_tensors=(*LLAMA.layer_tensors, "attn_sinks"),
    name_map_architecture="granite",
    tensor_names={"self_attn.sinks": "attn_sinks.weight"},
    window_period=4,
    first_is_full=True,
    writes_window_flags=True,
    metadata=attention_metadata.granite_windows,
    defaults={**GRANITE.defaults, "sliding_window": 128},
)
GRANITEMOE_SWA = replace(
    GRANITE_SWA,
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, "attn_sinks", "ffn_gate_inp", "ffn_gate_up_exps", "ffn_down_exps"),
    optional_layer_tensors=(*biases(*SEPARATE_QKV), "ffn_up_shexp", "ffn_down_shexp"),
    shapes={**FUSED_EXPERT_SHAPES, "ffn_up_shexp": ("n_gate_and_up_shared", "n_embd")},
    tensor_names={
        **GRANITE_SWA.tensor_names,
        "block_sparse_moe.router": "ffn_gate_inp",
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.input_linear": "ffn_gate_up_exps",
        "block_sparse_moe.output_linear": "ffn_down_exps",
        "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps",
        "block_sparse_moe.experts.down_proj": "ffn_down_exps",
        "shared_mlp.input_linear": "ffn_up_shexp",
        "shared_mlp.output_linear": "ffn_down_shexp",
    },
)
GRANITEHYBRID = Architecture(
    name="granitehybrid",
    layer_tensors=(*PRE_NORMS, *GATED_FFN),
    layer_type_tensors={"linear_attention": (*SSM_TENSORS, "ssm_norm"), "full_attention": SEPARATE_QKV},
    shapes={**MAMBA2.shapes, "ffn_gate_up": ("n_gate_and_up", "n_embd")},
    final_shapes=MAMBA2.final_shapes,
    fused_sources=dict.fromkeys(("ffn_gate", "ffn_up"), "ffn_gate_up"),
    reorder={**INTERLEAVED_ROPE, "ffn_gate": reorder.first_half, "ffn_up": reorder.second_half},
    tensor_names={"shared_mlp.input_linear": "ffn_gate_up", "shared_mlp.output_linear": "ffn_down"},
    key_aliases={"intermediate_size": "shared_intermediate_size"},
    float_keys=GRANITE.float_keys,
    read_hparams=recurrent_metadata.mamba2_hparams,
    metadata=recurrent_metadata.granite_hybrid,
    required_values={
        "attention_bias": False,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    },
    defaults=GRANITE.defaults,
)
GRANITEHYBRID_WITH_EXPERTS = replace(
    GRANITEHYBRID,
    layer_tensors=(*PRE_NORMS, *EXPERTS),
    optional_layer_tensors=SHARED_EXPERTS,
    shapes={**MAMBA2.shapes, **FUSED_EXPERT_SHAPES},
    fused_sources=GRANITEMOE.fused_sources,
    reorder=GRANITEMOE.reorder,
    tensor_names=GRANITEMOE.tensor_names,
    key_aliases={},
)
# The class of granitehybrid also has models without recurrent layers.
GRANITE_WITHOUT_STATES = replace(
    GRANITE,
    shapes=GRANITEHYBRID.shapes,
    fused_sources=GRANITEHYBRID.fused_sources,
    reorder=GRANITEHYBRID.reorder,
    tensor_names=GRANITEHYBRID.tensor_names,
    key_aliases=GRANITEHYBRID.key_aliases,
    metadata=recurrent_metadata.granite_without_states,
)
RECURRENT_LAYER_TYPES = ("linear_attention", "mamba")  # names of layer types


def granite_speech(config: JsonObject) -> Architecture:
    """Return the architecture of the text model of Granite Speech. Raises UnsupportedError for one that needs an
    adapter for sounds."""
    if config.get("has_lora_adapter", bool, True):
        what = "is true: the model needs its LoRA adapter for sounds, which is not converted; merge it first"
        raise config.error("has_lora_adapter", what, UnsupportedError)
    return replace(GRANITE, ignored_tensors=r"(model\.)?(encoder|projector)\..*")


def granite_hybrid(config: JsonObject) -> Architecture:
    """Return the architecture: models of this class may have experts, and may lack recurrent layers."""
    recurrent = any(kind in RECURRENT_LAYER_TYPES for kind in config.get("layer_types", list))
    if config.get("num_local_experts", int, 0):
        return GRANITEHYBRID_WITH_EXPERTS if recurrent else GRANITEMOE
    return GRANITEHYBRID if recurrent else GRANITE_WITHOUT_STATES


BY_CLASS: Mapping[str, Architecture | Callable[[JsonObject], Architecture]] = {
    "GraniteForCausalLM": GRANITE,
    "GraniteSWAForCausalLM": GRANITE_SWA,
    "GraniteMoeSWAForCausalLM": GRANITEMOE_SWA,
    "GraniteMoeForCausalLM": GRANITEMOE,
    "GraniteMoeSharedForCausalLM": GRANITEMOE,
    "GraniteMoeHybridForCausalLM": granite_hybrid,
    "GraniteSpeechForConditionalGeneration": granite_speech,
    "GraniteSpeechPlusForConditionalGeneration": granite_speech,
}
