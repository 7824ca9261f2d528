"""InternVL: tiles of 448 pixels, four patches to a token."""

from localinfer.conversion.projectors.projector_architecture import (
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    activation,
    epsilon,
    split_qkv,
)
from localinfer.gguf.source import Field

MAX_TILES = 64
SEPARATE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
PROJECTOR = {"layer_norm": "mlp1.0", "linear_1": "mlp1.1", "linear_2": "mlp1.3"}


def internvl_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the sizes of images and patches, of which the checkpoints of transformers have one per side."""
    sizes = {key: config.encoder.values.get(key) for key in ("image_size", "patch_size")}
    return {key: size[0] for key, size in sizes.items() if isinstance(size, list) and size and type(size[0]) is int}


def internvl_fields(config: ProjectorConfig) -> Fields:
    """Return the numbers of tiles, if config.json has them, in addition to the usual fields."""
    ratio = config.root.positive_float("downsample_ratio", maximum=1.01)
    tiles = {
        f"clip.vision.preproc_{key}_tiles": config.root.get(f"{key}_dynamic_patch", int, 0) for key in ("min", "max")
    }
    return {
        **epsilon(config.encoder, "layer_norm_eps"),
        **activation(config.encoder),
        "clip.vision.projector.scale_factor": Field.uint32(int(1 / ratio)),
        **{key: Field.uint32(number) for key, number in tiles.items() if 0 < number <= MAX_TILES},
    }


def internvl_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    return split_qkv(name, "attn.qkv", SEPARATE)


INTERNVL = ProjectorArchitecture(
    projector_type="internvl",
    fields=internvl_fields,
    prefixes={
        "vision_model.": "vision_tower.vision_model.",
        "mlp1.": "mlp1.",
        "model.vision_tower.": "model.vision_tower.",
        **{f"model.multi_modal_projector.{old}.": f"{new}." for old, new in PROJECTOR.items()},
    },
    names=((r"((\.ls|\.lambda_)\d|position_embeddings?)$", r"\1.weight"),),
    parts=internvl_parts,
    f32_tensors=r"v\.position_embd\..*",
    sizes=internvl_sizes,
)
BY_CLASS = {
    "InternVLChatModel": INTERNVL,
    "InternVLForConditionalGeneration": INTERNVL,
    "InternVisionModel": INTERNVL,
}
