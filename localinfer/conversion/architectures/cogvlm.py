"""The text models of CogVLM and CogVLM2, with a second set of matrices for the rows of images."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import FUSED_QKV, GATED_FFN, PRE_NORMS
from localinfer.conversion.checkpoint_folder import JsonObject

KV_HEADS = "num_multi_query_heads"
VISUAL_SHAPES = {
    "vis_attn_qkv": ("n_qkv", "n_embd"), "vis_attn_output": ("n_embd", "n_q"), "vis_gate": ("n_ff", "n_embd"),
    "vis_up": ("n_ff", "n_embd"), "vis_down": ("n_embd", "n_ff"),
}  # fmt: skip
COGVLM = Architecture(
    name="cogvlm",
    layer_tensors=(*PRE_NORMS, *FUSED_QKV, *GATED_FFN, *VISUAL_SHAPES),
    optional_layer_tensors=("vis_attn_qkv.bias",),
    shapes=VISUAL_SHAPES,
    ignored_tensors=r"model\.vision\..*",
)
COGVLM2 = replace(COGVLM, key_aliases={"num_key_value_heads": KV_HEADS}, defaults={"rope_theta": 500_000.0})


def text_model(config: JsonObject) -> Architecture:
    """Return the architecture of the text model."""
    return COGVLM2 if KV_HEADS in config.values else COGVLM


BY_CLASS = {"CogVLMForCausalLM": text_model}
