"""Gemma 3: SigLIP, whose patches are averaged, and one matrix."""

from localinfer.conversion.projectors.projector_architecture import (
    USE_GELU,
    Fields,
    ProjectorArchitecture,
    ProjectorConfig,
    epsilon,
)
from localinfer.gguf.source import Field

DEFAULT_TOKENS = 256  # of an image
USUAL_SCALE_FACTOR = 4  # readers assume it


def gemma3_fields(config: ProjectorConfig) -> Fields:
    """Return the scale factor of models that are not the usual ones, in addition to the usual fields."""
    per_side = int(config.preprocessor.positive_int("image_seq_length", 1 << 16, DEFAULT_TOKENS) ** 0.5)
    image, patch = config.encoder.positive_int("image_size", 8192), config.encoder.positive_int("patch_size", 256)
    factor = image // patch // per_side
    scale = {"clip.vision.projector.scale_factor": Field.uint32(factor)}
    return {
        **epsilon(config.encoder, "layer_norm_eps", 1e-6),
        **USE_GELU,
        **(scale if factor not in (0, USUAL_SCALE_FACTOR) else {}),
    }


GEMMA3 = ProjectorArchitecture(
    projector_type="gemma3",
    fields=gemma3_fields,
    prefixes={
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "vision_tower.": "vision_tower.",
        "multi_modal_projector.": "multi_modal_projector.",
    },
    ignored=r"vision_model\.head\.",
    names=((r"_weight$", ".weight"), (r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.")),
    offsets={"mm.soft_emb_norm.weight": 1.0},
    f32_tensors=r"v\.(patch_embd|position_embd)\..*",
    f16_tensors=r"mm\.input_projection\.weight",
)
BY_CLASS = {"Gemma3ForConditionalGeneration": GEMMA3}
