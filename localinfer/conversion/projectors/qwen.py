"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images of any size, two frames to a patch, four patches to a token. Qwen2.5-Omni
has an encoder of sounds, too."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

import numpy as np

from localinfer.conversion.projectors.projector_architecture import (
    USE_GELU,
    USE_SILU,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    Values,
    epsilon,
    split_frames,
    split_qkv,
    whole,
)
from localinfer.conversion.projectors.whisper import QWEN2A
from localinfer.gguf.source import Field

IMAGE_SIZE = 560  # readers need one; images have any size
PATCH_EMBEDDING = "visual.patch_embed.proj.weight"
MERGER = {"linear_fc1": "mm.0", "linear_fc2": "mm.2", "norm": "v.post_ln"}
DEEPSTACK = {"linear_fc1": "fc1", "linear_fc2": "fc2", "norm": "norm"}
MAX_LAYERS = 1024
AUDIO_POSITIONS, LONGEST_PERIOD = 1500, 10_000.0


def qwen2_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the sizes by the usual names: the hidden size of Qwen2-VL's configuration is that of the text model."""
    encoder = config.encoder
    sizes = {"image_size": encoder.positive_int("image_size", 8192, IMAGE_SIZE)}
    if "embed_dim" in encoder.values:
        width = encoder.positive_int("embed_dim", 1 << 17)
        sizes |= {"intermediate_size": encoder.positive_int("hidden_size", 1 << 20), "hidden_size": width}
    return sizes


def qwen2_fields(config: ProjectorConfig) -> Fields:
    return epsilon(config.root, "rms_norm_eps", 1e-6)


def qwen25_fields(config: ProjectorConfig) -> Fields:
    return {**USE_SILU, **full_attention_period(config), **qwen2_fields(config)}


def full_attention_period(config: ProjectorConfig) -> Fields:
    """Return the period of the layers with full attention: every n-th layer has it."""
    full = config.encoder.get("fullatt_block_indexes", list)
    if not full or not all(type(layer) is int for layer in full):
        raise config.encoder.error("fullatt_block_indexes", "must be numbers of layers")
    period = full[0] + 1
    if period < 1 or full != [period * (number + 1) - 1 for number in range(len(full))]:
        raise config.encoder.error("fullatt_block_indexes", "must be every n-th layer")
    return {"clip.vision.n_wa_pattern": Field.uint32(period)}


def qwen2_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    return split_qkv(name, "qkv", ("q", "k", "v")) or split_frames(name, PATCH_EMBEDDING)


def qwen3_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the size of the image that the table of position embeddings belongs to."""
    n_positions = config.encoder.positive_int("num_position_embeddings", 1 << 24, 2304)
    side = isqrt(n_positions) * config.encoder.positive_int("patch_size", 256, 16)
    return {"image_size": config.encoder.positive_int("image_size", 8192, side)}


def qwen3_fields(config: ProjectorConfig) -> Fields:
    """Return which layers' output goes into the first layers of the text model (DeepStack)."""
    layers = deepstack_layers(config)
    flags = [layer in layers for layer in range(config.encoder.positive_int("depth", MAX_LAYERS))]
    return {
        **USE_GELU,
        "clip.vision.spatial_merge_size": Field.uint32(config.encoder.positive_int("spatial_merge_size", 64)),
        **epsilon(config.root.child("text_config"), "rms_norm_eps", 1e-6),
        "clip.vision.is_deepstack_layers": Field.flags(flags),
    }


def deepstack_layers(config: ProjectorConfig) -> list[int]:
    """Return the layers with a DeepStack merger, in the order in which checkpoints number the mergers."""
    n_layer = config.encoder.positive_int("depth", MAX_LAYERS)
    layers = config.encoder.get("deepstack_visual_indexes", list, [])
    if not all(type(layer) is int and 0 <= layer < n_layer for layer in layers):
        raise config.encoder.error("deepstack_visual_indexes", f"must be numbers of layers below {n_layer}")
    return layers


def qwen3_parts(name: str, config: ProjectorConfig) -> Parts | None:
    """Return the frames of the patch embedding, or a tensor of a merger under its GGUF name."""
    words = name.split(".")
    if words[1] == "merger" and words[2] in MERGER:
        return {f"{MERGER[words[2]]}.{words[-1]}": whole}
    layers = deepstack_layers(config)
    if words[1] == "deepstack_merger_list" and words[3] in DEEPSTACK and int(words[2]) < len(layers):
        return {f"v.deepstack.{layers[int(words[2])]}.{DEEPSTACK[words[3]]}.{words[-1]}": whole}
    return split_frames(name, PATCH_EMBEDDING)


QWEN2VL = ProjectorArchitecture(
    projector_type="qwen2vl_merger",
    fields=qwen2_fields,
    prefixes={"visual.": "visual.", "model.visual.": "visual."},
    parts=qwen2_parts,
    sizes=qwen2_sizes,
)
QWEN25VL = replace(QWEN2VL, projector_type="qwen2.5vl_merger", fields=qwen25_fields)
QWEN3VL = replace(QWEN2VL, projector_type="qwen3vl_merger", fields=qwen3_fields, parts=qwen3_parts, sizes=qwen3_sizes)


def sinusoids(config: ProjectorConfig) -> Mapping[str, Values]:
    """Return the position embeddings of sounds, which the checkpoint's class computes: sines, then cosines."""
    pairs = config.encoder.positive_int("d_model", 1 << 17) // 2
    scales = np.exp(-np.log(LONGEST_PERIOD) / max(pairs - 1, 1) * np.arange(pairs))
    angles = np.arange(AUDIO_POSITIONS)[:, None] * scales
    return {"a.position_embd.weight": np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)}


OMNI = (
    replace(QWEN25VL, projector_type="qwen2.5o", prefixes={"thinker.visual.": "visual."}, root_key="thinker_config"),
    replace(
        QWEN2A, projector_type="qwen2.5o", prefixes={"thinker.audio_tower.": "audio_tower."},
        ignored="audio_bos_eos_token", added=sinusoids,
    ),
)  # fmt: skip
BY_CLASS = {
    "Qwen2_5OmniModel": OMNI,
    "Qwen2_5OmniForConditionalGeneration": OMNI,
    "Qwen2VLForConditionalGeneration": QWEN2VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN25VL,
    "Qwen3VLForConditionalGeneration": QWEN3VL,
    "Qwen3VLMoeForConditionalGeneration": QWEN3VL,
    "Qwen3_5ForConditionalGeneration": QWEN3VL,
    "Qwen3_5MoeForConditionalGeneration": QWEN3VL,
    "Qwen4ExpForConditionalGeneration": QWEN3VL,
}
