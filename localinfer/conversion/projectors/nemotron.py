"""Nemotron Nano 2 VL: RADIO on tiles of 512 pixels, whose positions are resampled for that size."""

from math import isqrt

from localinfer.conversion.projectors.projector_architecture import (
    USE_GELU,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    Values,
)
from localinfer.gguf.source import Field
from localinfer.multimodal.encoder_graph.positions import resample

SIZES = {  # of ViT-H, which config.json lacks
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
}
IMAGE_SIZE, MAX_SIZE = 512, 8192
TOWER = "vision_model.radio_model.model."
POSITIONS = f"{TOWER}patch_generator.pos_embed"


def nemotron_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the sizes of the encoder and of its tiles."""
    missing = {key: size for key, size in SIZES.items() if key not in config.encoder.values}
    return {**missing, "image_size": config.root.positive_int("force_image_size", MAX_SIZE, IMAGE_SIZE)}


def nemotron_fields(config: ProjectorConfig) -> Fields:
    ratio = config.root.positive_float("downsample_ratio", 0.5, maximum=1.01)
    return {
        "clip.vision.attention.layer_norm_epsilon": Field.float32(1e-6),
        **USE_GELU,
        "clip.vision.projector.scale_factor": Field.uint32(int(1 / ratio)),
    }


def nemotron_parts(name: str, config: ProjectorConfig) -> Parts | None:
    """Return the positions for the size of a tile, and the patch embedding as a convolution."""
    size = config.encoder.positive_int("patch_size", 256)
    if name == POSITIONS:
        side = config.encoder.positive_int("image_size", MAX_SIZE) // size
        return {"v.position_embd.weight": lambda values: resampled(values, side)}
    if name == f"{TOWER}patch_generator.embedder.weight":
        return {name: lambda values: values.reshape(len(values), 3, size, size)}
    return None


def resampled(values: Values, side: int) -> Values:
    """Return a square table of positions, (1, rows * columns, n), for a grid of side x side patches."""
    old = isqrt(values.shape[1])
    table = values.reshape(old, old, values.shape[2])
    return resample(table, (side, side), "linear", align_corners=True)[None]


NEMOTRON = ProjectorArchitecture(
    projector_type="nemotron_v2_vl",
    fields=nemotron_fields,
    prefixes={TOWER: TOWER, "mlp1.": "mlp1."},
    ignored=r"input_conditioner|video_embedder",
    parts=nemotron_parts,
    float_parts=r"v\.position_embd\.weight",
    sizes=nemotron_sizes,
)
BY_CLASS = {"NemotronH_Nano_VL_V2": NEMOTRON}
