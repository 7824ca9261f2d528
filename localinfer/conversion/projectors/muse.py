"""Muse Glimmer: a vision transformer with attention to windows, whose patches show two frames."""

import re

from localinfer.conversion.projectors.projector_architecture import (
    MAX_HEADS,
    MAX_MERGE,
    MAX_PATCH,
    MAX_SIDE,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    epsilon,
    permute_heads,
)
from localinfer.gguf.source import Field

PATCH_EMBEDDING = "model.vision_tower.patch_embedder.patch_embedding.weight"
QUERY_OR_KEY = re.compile(r"\.attn_[qk]\.")
CHANNELS = 3
MAX_FRAMES = 64  # of a patch


def muse_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the side of an image of as many tokens as the table of positions has rows; images have any size."""
    encoder = config.encoder
    side = encoder.positive_int("pos_emb_height", MAX_SIDE) * encoder.positive_int("patch_size", MAX_PATCH)
    return {"image_size": side * encoder.positive_int("merge_size", MAX_MERGE)}


def muse_fields(config: ProjectorConfig) -> Fields:
    merge = config.encoder.positive_int("merge_size", MAX_MERGE)
    return {
        **epsilon(config.encoder, "layer_norm_eps"),
        "clip.vision.spatial_merge_size": Field.uint32(merge),
    }


def muse_parts(name: str, config: ProjectorConfig) -> Parts | None:
    """Return queries and keys whose pairs are neighbours, or the patch embedding of an image, of which both frames are
    equal: the sum of those of the frames."""
    encoder = config.encoder
    if QUERY_OR_KEY.search(name):
        n_head = encoder.positive_int("num_attention_heads", MAX_HEADS)
        return {name: lambda values: permute_heads(values, n_head)}
    if name == PATCH_EMBEDDING:
        size, count = encoder.positive_int("patch_size", MAX_PATCH), encoder.positive_int("patch_temporal", MAX_FRAMES)
        return {"v.patch_embd.weight": lambda values: values.reshape(-1, count, CHANNELS, size, size).sum(1)}
    return None


MUSE_GLIMMER = ProjectorArchitecture(
    projector_type="muse-glimmer",
    fields=muse_fields,
    prefixes={
        "model.vision_tower.": "model.vision_tower.",
        "model.vision_adapter.fc1.": "mm.0.",
        "model.vision_adapter.fc2.": "mm.1.",
        "model.vision_projection.": "mm.2.",
    },
    names=(
        (r"^model\.vision_tower\.layers\.(\d+)\.", r"v.blk.\1."),
        (r"\.attn\.([qkv])_proj\.", r".attn_\1."),
        (r"\.attn\.proj\.", ".attn_out."),
        (r"\.norm([12])\.", r".ln\1."),
        (r"\.mlp\.fc1\.", ".ffn_up."),
        (r"\.mlp\.fc2\.", ".ffn_down."),
        (r"^model\.vision_tower\.ln_(pre|post)\.", r"v.\1_ln."),
    ),
    parts=muse_parts,
    float_parts=r"v\.patch_embd\.weight",
    sizes=muse_sizes,
)
BY_CLASS = {"MuseGlimmerForConditionalGeneration": MUSE_GLIMMER}
