"""MiniMax-M3: a vision transformer with rotary positions in three dimensions, two frames to a patch."""

import re

import numpy as np

from localinfer.conversion.projectors.projector_architecture import (
    USE_GELU,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    Values,
    epsilon,
    split_frames,
    whole,
)
from localinfer.gguf.source import Field

PATCH_EMBEDDING = "vision_tower.vision_model.embeddings.patch_embedding.weight"
MERGER = "patch_merge_mlp.linear_"
QUERY_OR_KEY = re.compile(r"vision_tower\.vision_model\.encoder\.layers\.(\d+)\.self_attn\.([qk])_proj\.(weight|bias)")
AXES = 3


def minimax_fields(config: ProjectorConfig) -> Fields:
    compression = config.encoder.child("img_token_compression_config")
    return {
        **USE_GELU,
        **epsilon(config.encoder, "layer_norm_eps", 1e-5),
        "clip.vision.spatial_merge_size": Field.uint32(compression.positive_int("spatial_merge_size", 64, 2)),
    }


def axes_together(values: Values, n_head: int) -> Values:
    """Return the rows of queries or keys with the values that rotate by one axis next to each other, as GGUF has them.

    A head of a checkpoint has the first values of the pairs of all axes, then the second ones, then values that do not
    rotate.
    """
    heads = values.reshape(n_head, -1, *values.shape[1:])
    n_pairs = heads.shape[1] // AXES // 2
    n_rot = 2 * AXES * n_pairs
    rotated = heads[:, :n_rot].reshape(n_head, 2, AXES, n_pairs, *values.shape[1:]).swapaxes(1, 2)
    together = rotated.reshape(n_head, n_rot, *values.shape[1:])
    return np.concatenate([together, heads[:, n_rot:]], 1).reshape(values.shape)


def minimax_parts(name: str, config: ProjectorConfig) -> Parts | None:
    """Return the frames of the patch embedding, a tensor of the merger, or reordered queries and keys."""
    if name.startswith(MERGER):
        number, kind = name.removeprefix(MERGER).split(".")
        return {f"mm.merger.fc{number}.{kind}": whole}
    if match := QUERY_OR_KEY.fullmatch(name):
        n_head = config.encoder.positive_int("num_attention_heads", 1 << 12)
        return {f"v.blk.{match[1]}.attn_{match[2]}.{match[3]}": lambda values: axes_together(values, n_head)}
    return split_frames(name, PATCH_EMBEDDING)


MINIMAX_M3 = ProjectorArchitecture(
    projector_type="minimax_m3",
    fields=minimax_fields,
    prefixes={each: each for each in ("vision_tower.", "multi_modal_projector.", MERGER)},
    parts=minimax_parts,
)
BY_CLASS = dict.fromkeys(("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForConditionalGeneration"), MINIMAX_M3)
