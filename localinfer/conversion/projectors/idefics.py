"""Idefics3 and SmolVLM: SigLIP, whose patches are joined, and one matrix."""

from localinfer.conversion.projectors.projector_architecture import (
    USE_GELU,
    Fields,
    ProjectorArchitecture,
    ProjectorConfig,
    epsilon,
    scale_factor,
)
from localinfer.gguf.source import Field

SMOLVLM_SIZES = {"hidden_size": 1152, "num_attention_heads": 16, "intermediate_size": 3072}  # transformers' defaults


def idefics3_fields(config: ProjectorConfig) -> Fields:
    """Return the longest edge of the whole image, in addition to the usual fields."""
    image_size = config.encoder.positive_int("image_size", 8192)
    longest = config.preprocessor.child("size").positive_int("longest_edge", 1 << 16, image_size)
    return {
        **epsilon(config.encoder, "layer_norm_eps", 1e-5),
        **scale_factor(config.root, "scale_factor", 2),
        **USE_GELU,
        "clip.vision.preproc_image_size": Field.uint32(longest),
    }


def missing_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the sizes that config.json of SmolVLM2 lacks."""
    is_smolvlm = config.encoder.get("model_type", str, "") == "smolvlm_vision"
    return {key: size for key, size in SMOLVLM_SIZES.items() if is_smolvlm and key not in config.encoder.values}


IDEFICS3 = ProjectorArchitecture(
    projector_type="idefics3",
    fields=idefics3_fields,
    prefixes={"model.vision_model.": "model.vision_model.", "model.connector.": "model.connector."},
    f32_tensors=r"v\.(patch_embd|position_embd)\..*",
    sizes=missing_sizes,
)
BY_CLASS = {"Idefics3ForConditionalGeneration": IDEFICS3, "SmolVLMForConditionalGeneration": IDEFICS3}
