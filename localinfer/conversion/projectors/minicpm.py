"""MiniCPM-V 2.6, 4.0 and 4.5: SigLIP and a resampler. llama.cpp has a script for these, whose names are used. MiniCPM-V
4.6: SigLIP and layers that merge squares."""

import numpy as np

from localinfer.conversion.projectors.projector_architecture import (
    USE_GELU,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    Values,
    epsilon,
    rows,
    whole,
)
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field

VERSIONS = {2.6: 3, 4.0: 5, 4.5: 6}  # of config.json -> of GGUF
IMAGE_SIZE, N_QUERIES, TABLE_SIDE = 448, 64, 70
MERGER_LAYER, BETWEEN, MAX_LAYERS = "insert_layer_id", "v.vit_merger.", 1024
DIRECT = {"kv_proj": "kv", "attn.out_proj": "attn.out"}


def minicpm_fields(config: ProjectorConfig) -> Fields:
    """Return the version and the number of queries, in addition to the usual fields."""
    version = config.root.values.get("version")
    try:
        number = VERSIONS.get(float(version), 0) if isinstance(version, str | int | float) else 0
    except ValueError:
        number = 0
    if not number:
        raise config.root.error("version", f"must be one of {', '.join(map(str, VERSIONS))}", UnsupportedError)
    if config.root.get("drop_vision_last_layer", bool, False):
        raise config.root.error("drop_vision_last_layer", "true is not supported", UnsupportedError)
    return {
        "clip.has_minicpmv_projector": Field.flag(True),
        "clip.minicpmv_version": Field.number(number, "<i4"),
        "clip.minicpmv_query_num": Field.uint32(config.root.positive_int("query_num", 1 << 12, N_QUERIES)),
        **USE_GELU,
        **epsilon(config.encoder, "layer_norm_eps", 1e-6),
    }


def key_positions(values: Values) -> Values:
    """Return the sines and cosines of the columns and rows of 70 x 70 patches, as many as `values` has columns.
    llama.cpp requires them."""
    n, at = values.shape[1], np.arange(TABLE_SIDE)
    angles = at[:, None] * 10_000.0 ** (-4.0 * np.arange(n // 4) / n)
    each = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
    shape = (TABLE_SIDE, TABLE_SIDE, each.shape[1])
    table = np.concatenate([np.broadcast_to(each, shape), np.broadcast_to(each[:, None], shape)], 2)
    return table.reshape(TABLE_SIDE**2, -1)


def minicpm_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return the parts of the resampler's tensors."""
    if not name.startswith("resampler."):
        return None
    name = name.removeprefix("resampler.")
    if name == "proj":
        return {"resampler.pos_embed_k": key_positions, "resampler.proj.weight": lambda values: values.T}
    if name == "pos_embed":
        return {}
    if name.startswith("attn.in_proj_"):
        kind = name.removeprefix("attn.in_proj_")
        return {f"resampler.attn.{each}.{kind}": rows(number, 3) for number, each in enumerate("qkv")}
    for old, new in DIRECT.items():
        name = name.replace(old, new)
    return {f"resampler.{name}": whole}


MINICPMV = ProjectorArchitecture(
    projector_type="resampler",
    fields=minicpm_fields,
    prefixes={"vpm.": "vision_tower.vision_model.", "resampler.": "resampler."},
    ignored=r"^vpm\.head\.|position_ids",
    parts=minicpm_parts,
    float_parts=r"resampler\.pos_embed_k",
    sizes=lambda config: {"image_size": config.root.positive_int("image_size", 8192, IMAGE_SIZE)},
)


def merging_fields(config: ProjectorConfig) -> Fields:
    """Return by how much rows and columns are divided, and the layer after which squares of patches are merged."""
    root, encoder = config.root, config.encoder
    where = root if MERGER_LAYER in root.values else encoder
    layer = where.get(MERGER_LAYER, int, 6)
    if not 0 <= layer < MAX_LAYERS:
        raise where.error(MERGER_LAYER, f"is {layer}; it must be the number of a layer")
    return {
        "clip.vision.projector.scale_factor": Field.uint32(4 if merges_between_layers(config) else 2),
        "clip.vision.wa_layer_indexes": Field.numbers(np.array([layer], np.int32)),
        **USE_GELU,
        **epsilon(encoder, "layer_norm_eps", 1e-6),
    }


def merges_between_layers(config: ProjectorConfig) -> bool:
    """Return whether squares of patches become one row each between the layers."""
    mode = config.preprocessor.get("downsample_mode", str, "16x")
    if mode not in ("4x", "16x"):
        raise config.preprocessor.error("downsample_mode", "must be '4x' or '16x'")
    return mode == "16x"


def merging_parts(name: str, config: ProjectorConfig) -> Parts | None:
    """Return no parts of what merges squares between the layers, if it is not used."""
    return {} if name.startswith(BETWEEN) and not merges_between_layers(config) else None


def slice_side(config: ProjectorConfig) -> dict[str, int]:
    """Return the side of a square slice, if the image processor has one."""
    key = "scale_resolution"
    return {"image_size": config.preprocessor.positive_int(key, 8192)} if key in config.preprocessor.values else {}


MINICPMV4_6 = ProjectorArchitecture(
    projector_type="minicpmv4_6",
    fields=merging_fields,
    prefixes={
        "model.vision_tower.vit_merger.": BETWEEN,
        "model.vision_tower.": "vision_tower.vision_model.",
        "model.merger.mlp.0.": "mm.",
        "model.merger.": "model.merger.",
    },
    names=(
        (r"^v\.vit_merger\.self_attn\.([qkv])_proj\.", rf"{BETWEEN}attn_\1."),
        (r"^v\.vit_merger\.self_attn\.out_proj\.", f"{BETWEEN}attn_out."),
        (r"^v\.vit_merger\.layer_norm1\.", f"{BETWEEN}ln1."),
        (r"^v\.vit_merger\.pre_norm\.", f"{BETWEEN}ds_ln."),
        (r"^v\.vit_merger\.linear_1\.", f"{BETWEEN}ds_ffn_up."),
        (r"^v\.vit_merger\.linear_2\.", f"{BETWEEN}ds_ffn_down."),
        (r"^mm\.pre_norm\.", "mm.input_norm."),
        (r"^mm\.linear_1\.", "mm.up."),
        (r"^mm\.linear_2\.", "mm.down."),
    ),
    parts=merging_parts,
    sizes=slice_side,
)
BY_CLASS = {"MiniCPMV": MINICPMV, "MiniCPMV4_6ForConditionalGeneration": MINICPMV4_6}
