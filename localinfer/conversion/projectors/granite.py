"""Granite Speech: a conformer and a Q-Former."""

from dataclasses import replace

import numpy as np

from localinfer.conversion.projectors.projector_architecture import (
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    rows,
)
from localinfer.gguf.source import Field

EPSILON = 1e-5  # of the encoder's norms
MAX_SIZE = 1 << 16


def granite_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the sizes by the usual names."""
    encoder = config.encoder
    width = encoder.positive_int("hidden_dim", 1 << 17)
    return {
        "hidden_size": width, "intermediate_size": width * encoder.positive_int("feedforward_mult", 64),
        "num_attention_heads": encoder.positive_int("num_heads", 1 << 12),
        "num_hidden_layers": encoder.positive_int("num_layers", 1024),
    }  # fmt: skip


def granite_fields(config: ProjectorConfig) -> Fields:
    """Return the sizes of the encoder's blocks and of the Q-Former's windows."""
    sizes = {
        "num_mel_bins": config.encoder.positive_int("input_dim", 1 << 10),
        "chunk_size": config.encoder.positive_int("context_size", MAX_SIZE),
        "conv_kernel_size": config.encoder.positive_int("conv_kernel_size", MAX_SIZE),
        "max_pos_emb": config.encoder.positive_int("max_pos_emb", MAX_SIZE),
        "projector.window_size": config.root.positive_int("window_size", MAX_SIZE),
        "projector.downsample_rate": config.root.positive_int("downsample_rate", MAX_SIZE),
        "projector.head_count": config.root.child("projector_config").positive_int("num_attention_heads", 1 << 12),
    }
    return {
        **{f"clip.audio.{key}": Field.uint32(size) for key, size in sizes.items()},
        "clip.audio.attention.layer_norm_epsilon": Field.float32(EPSILON),
    }


def granite_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return keys and values apart, and convolutions over time as matrices."""
    if ".attn.to_kv." in name:
        return {name.replace("to_kv", each): rows(number, 2) for number, each in enumerate(("to_k", "to_v"))}
    if name.endswith(("up_conv.weight", "down_conv.weight")):
        return {name: lambda values: values[:, :, 0]}
    if name.endswith("depth_conv.conv.weight"):
        return {name: lambda values: values[:, 0]}
    return None


GRANITE_SPEECH = ProjectorArchitecture(
    projector_type="granite_speech",
    fields=granite_fields,
    prefixes={
        "encoder.": "encoder.", "projector.": "projector.", "model.encoder.": "encoder.",
        "model.projector.": "projector.",
    },
    ignored=r"\.num_batches_tracked$|attention_dists",
    parts=granite_parts,
    batch_norm=r"encoder\.layers\.\d+\.conv\.batch_norm",
    f32_tensors=r"a\.blk\.\d+\.(norm_conv|conv_\w+)\.(weight|bias)",
    is_audio=True,
    encoder_key="encoder_config",
    sizes=granite_sizes,
)


def plus_fields(config: ProjectorConfig) -> Fields:
    """Return the fields with the layers whose outputs the Q-Former reads beside that of the last."""
    layers = config.encoder.get("cat_hidden_layers", list, [])
    if not all(type(layer) is int and 0 <= layer < MAX_SIZE for layer in layers):
        raise config.encoder.error("cat_hidden_layers", "must be numbers of layers")
    kept = {"clip.audio.feature_layer": Field.numbers(np.array(layers, np.int32))} if layers else {}
    return {**granite_fields(config), **kept}


BY_CLASS = {
    "GraniteSpeechForConditionalGeneration": GRANITE_SPEECH,
    "GraniteSpeechPlusForConditionalGeneration": replace(GRANITE_SPEECH, fields=plus_fields),
}
