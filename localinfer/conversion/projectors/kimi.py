"""Kimi-VL and Kimi K2.5: MoonViT with images of any size."""

from dataclasses import replace

import numpy as np

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.projectors.projector_architecture import (
    MAX_HEADS,
    MAX_MERGE,
    MAX_PATCH,
    MAX_SIDE,
    USE_GELU,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    Values,
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
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
PATCHES = "in_patch_limit"
FEWEST_PATCHES, MAX_PATCHES = 8, 1 << 17  # of an image


def usual_names(config: ProjectorConfig) -> ProjectorConfig:
    """Return the configuration of Kimi K2.5 with the usual names of sizes, and what preprocessor_config.json has in an
    object of its own."""
    encoder, own = config.encoder, config.preprocessor.child("media_proc_cfg")
    values = {key: encoder.values[f"vt_{key}"] for key in SIZES if f"vt_{key}" in encoder.values}
    processor = replace(config.preprocessor, values={**config.preprocessor.values, **own.values})
    return replace(config, encoder=replace(encoder, values={**encoder.values, **values}), preprocessor=processor)


def k25_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the side of the image that the table of position embeddings belongs to."""
    side = config.encoder.positive_int("init_pos_emb_height", MAX_SIDE, 64)
    return {"image_size": side * config.encoder.positive_int("patch_size", MAX_PATCH, 14)}


def k25_fields(config: ProjectorConfig) -> Fields:
    encoder = config.encoder
    pixels = encoder.positive_int("patch_size", MAX_PATCH, 14) ** 2
    most = config.preprocessor.positive_int(PATCHES, MAX_PATCHES, 16_384)
    tables = {"height": 64, "width": 64, "time": 4}
    return {
        "clip.use_gelu": Field.flag(encoder.get("projector_hidden_act", str, "gelu") == "gelu"),
        **epsilon(encoder, "projector_ln_eps", 1e-5),
        "clip.vision.projector.scale_factor": Field.uint32(merge_size(encoder)),
        "clip.vision.image_min_pixels": Field.uint32(FEWEST_PATCHES * pixels),
        "clip.vision.image_max_pixels": Field.uint32(most * pixels),
        **{
            f"vision.pos_emb_{key}": Field.uint32(encoder.positive_int(f"init_pos_emb_{key}", MAX_SIDE, size))
            for key, size in tables.items()
        },
    }


def merge_size(encoder: JsonObject) -> int:
    """Return the number of patches on each side of a square. Raises LocalInferError unless it is a square."""
    sides = encoder.get("merge_kernel_size", list, [2, 2])
    if len(sides) != 2 or sides[0] != sides[1] or sides[0] not in range(1, MAX_MERGE + 1):
        raise encoder.error("merge_kernel_size", f"must be a number from 1 to {MAX_MERGE}, twice")
    return int(sides[0])


def k25_parts(name: str, config: ProjectorConfig) -> Parts | None:
    """Return queries, keys and values, the former with the pairs of columns before those of rows, which alternate in
    checkpoints."""
    n_head = config.encoder.positive_int("num_attention_heads", MAX_HEADS)
    return {name: lambda values: axes_apart(values, n_head)} if ".wqkv." in name else None


def axes_apart(values: Values, n_head: int) -> Values:
    """Return the rows of queries and keys with the pairs of one axis next to each other, and those of values as they
    are."""
    n, shape = len(values) // 3 * 2, values.shape[1:]
    rotated = values[:n].reshape(2 * n_head, n // n_head // 8, 2, 2, *shape).swapaxes(1, 2)
    return np.concatenate([rotated.reshape(n, *shape), values[n:]])


KIMIK25 = ProjectorArchitecture(
    projector_type="kimik25",
    fields=k25_fields,
    prefixes={"vision_tower.": "vision_tower.", "mm_projector.": "mm_projector."},
    ignored=r"pos_emb\.time_weight$",  # is computed, for frames of videos
    names=((r"^mm_projector\.proj\.0\.", "mm.1."), (r"^mm_projector\.proj\.2\.", "mm.2.")),
    parts=k25_parts,
    sizes=k25_sizes,
    change=usual_names,
)
BY_CLASS = {"KimiVLForConditionalGeneration": KIMIVL, "KimiK25ForConditionalGeneration": KIMIK25}
