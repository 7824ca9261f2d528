"""Dense models whose layers have different sizes."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import FUSED_QKV, GATED_FFN, HEAD_NORMS, PRE_NORMS
from localinfer.conversion.architectures.llama import LLAMA
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.metadata import layer_overrides
from localinfer.conversion.tensor_formats import reorder

OVERRIDDEN = {"num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 256}  # by each layer
OPENELM = Architecture(
    name="openelm",
    layer_tensors=(*PRE_NORMS, *FUSED_QKV, *HEAD_NORMS, *GATED_FFN),
    fused_sources=dict.fromkeys(("ffn_gate", "ffn_up"), "ffn_gate_up"),
    shapes={"ffn_gate_up": ("n_gate_and_up", "n_embd")},
    reorder={"ffn_gate": reorder.first_half, "ffn_up": reorder.second_half},
    tensor_names={"ffn.proj_1": "ffn_gate_up"},
    key_aliases={
        "hidden_size": "model_dim", "num_hidden_layers": "num_transformer_layers", "rope_theta": "rope_freq_constant",
        "max_position_embeddings": "max_context_length", "hidden_act": "activation_fn_name",
        "tie_word_embeddings": "share_input_output_layers",
    },
    metadata=layer_overrides.openelm_metadata,
    layer_overrides=layer_overrides.openelm_layers,
    required_values={
        "ffn_with_glu": True, "normalize_qk_projections": True, "normalization_layer_name": "rms_norm",
        "share_input_output_layers": True,
    },
    defaults={"rms_norm_eps": 1e-6, "tie_word_embeddings": True, **OVERRIDDEN},
)  # fmt: skip
DECI = replace(
    LLAMA,
    name="deci",
    metadata=layer_overrides.deci_metadata,
    layer_overrides=layer_overrides.deci_layers,
    defaults={"intermediate_size": OVERRIDDEN["intermediate_size"]},
)


def deci(config: JsonObject) -> Architecture:
    """Return the architecture, whose layers may all be alike."""
    if "block_configs" in config.values or "num_key_value_heads_per_layer" in config.values:
        return DECI
    return replace(DECI, metadata=LLAMA.metadata, layer_overrides=LLAMA.layer_overrides)


BY_CLASS: Mapping[str, Architecture | Callable[[JsonObject], Architecture]] = {
    "OpenELMForCausalLM": OPENELM,
    "DeciLMForCausalLM": deci,
}
