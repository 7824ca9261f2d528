"""Kimi-VL: MoonViT with images of any size."""

from localinfer.conversion.projectors.projector_architecture import (
    USE_GELU,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    epsilon,
    split_qkv,
)
from localinfer.gguf.source import Field

IMAGE_SIZE = 64 * 14  # of the table of position embeddings


def kimi_fields(config: ProjectorConfig) -> Fields:
    return {
        **USE_GELU,
        "clip.vision.projector.scale_factor": Field.uint32(2),
        **epsilon(config.encoder, "layer_norm_eps", 1e-5),
    }


def kimi_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return the table of position embeddings, which checkpoints store by row and column, as one row per position."""
    if name.endswith("pos_emb.weight"):
        return {name: lambda values: values.reshape(-1, values.shape[-1])}
    return split_qkv(name, "wqkv", ("wq", "wk", "wv"))


KIMIVL = ProjectorArchitecture(
    projector_type="kimivl",
    fields=kimi_fields,
    prefixes={"vision_tower.": "vision_tower.", "multi_modal_projector.": "multi_modal_projector."},
    parts=kimi_parts,
    sizes=lambda config: {"image_size": IMAGE_SIZE},  # noqa: ARG005
)
BY_CLASS = {"KimiVLForConditionalGeneration": KIMIVL}
