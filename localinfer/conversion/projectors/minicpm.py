"""MiniCPM-V 2.6, 4.0 and 4.5: SigLIP and a resampler. llama.cpp has a script for these, whose names are used."""

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
BY_CLASS = {"MiniCPMV": MINICPMV}
