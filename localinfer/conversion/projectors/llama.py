"""Llama 4: tiles of 336 pixels, RoPE in two dimensions, pixel shuffle."""

from localinfer.conversion.projectors.projector_architecture import (
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    activation,
    epsilon,
    whole,
)
from localinfer.gguf.source import Field


def llama4_fields(config: ProjectorConfig) -> Fields:
    ratio = config.encoder.positive_float("pixel_shuffle_ratio", maximum=1.01)
    return {
        **epsilon(config.encoder, "norm_eps"),
        "clip.vision.projector.scale_factor": Field.uint32(int(1 / ratio)),
        **activation(config.encoder),
    }


def llama4_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    return {"mm.model.fc.weight": whole} if name == "multi_modal_projector.linear_1.weight" else None


LLAMA4 = ProjectorArchitecture(
    projector_type="llama4",
    fields=llama4_fields,
    prefixes={
        "model.vision_model.": "vision_model.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "vision_model.": "vision_model.",
        "multi_modal_projector.": "multi_modal_projector.",
    },
    names=((r"positional_embedding_vlm$", "positional_embedding_vlm.weight"),),
    parts=llama4_parts,
)
BY_CLASS = {"Llama4ForConditionalGeneration": LLAMA4}
