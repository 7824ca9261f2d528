"""Gemma 3: SigLIP, whose patches are averaged, and one matrix; Gemma 3n: MobileNetV5 and a conformer; and Gemma 4,
whose products are clipped, with a conformer."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isqrt

import numpy as np

from localinfer.conversion.projectors.lfm import channels_first
from localinfer.conversion.projectors.projector_architecture import (
    MAX_HEADS,
    MAX_MERGE,
    USE_GELU,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    Values,
    epsilon,
    vector,
)
from localinfer.conversion.tensor_formats.values import Floats
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field

DEFAULT_TOKENS = 256  # of an image
USUAL_SCALE_FACTOR = 4  # readers assume it
GEMMA4_MERGE, GEMMA4_BASE, GEMMA4_ACTIVATION = 3, 100.0, "gelu_pytorch_tanh"  # readers assume them
GEMMA4_SOUND = {  # readers assume these, too
    "attention_chunk_size": 12, "attention_context_left": 13, "attention_context_right": 0, "attention_logit_cap": 50.0,
    "hidden_act": "silu", "residual_weight": 0.5,
}  # fmt: skip
GEMMA3N_SOUND = {  # and these
    "conf_attention_context_left": 13, "conf_attention_context_right": 0, "conf_attention_logit_cap": 50.0,
    "conf_residual_weight": 0.5, "conf_reduction_factor": 4, "sscp_conv_group_norm_eps": 1e-3,
    "sscp_conv_kernel_size": [[3, 3], [3, 3]], "sscp_conv_stride_size": [[2, 2], [2, 2]], "gradient_clipping": 1e10,
}  # fmt: skip
GEMMA3N_ROWS = 188  # of a sound
GEMMA3N_SIDE = 768  # pixels of an image
UNUSED_IMAGE_SIZE, UNUSED_BANDS = 224, 128  # readers need them


def gemma3_fields(config: ProjectorConfig) -> Fields:
    """Return the scale factor of models that are not the usual ones, in addition to the usual fields."""
    per_side = int(config.preprocessor.positive_int("image_seq_length", 1 << 16, DEFAULT_TOKENS) ** 0.5)
    image, patch = config.encoder.positive_int("image_size", 8192), config.encoder.positive_int("patch_size", 256)
    factor = image // patch // per_side
    scale = {"clip.vision.projector.scale_factor": Field.uint32(factor)}
    return {
        **epsilon(config.encoder, "layer_norm_eps", 1e-6),
        **USE_GELU,
        **(scale if factor not in (0, USUAL_SCALE_FACTOR) else {}),
    }


GEMMA3 = ProjectorArchitecture(
    projector_type="gemma3",
    fields=gemma3_fields,
    prefixes={
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "vision_tower.": "vision_tower.",
        "multi_modal_projector.": "multi_modal_projector.",
    },
    ignored=r"vision_model\.head\.",
    names=((r"_weight$", ".weight"), (r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.")),
    offsets={"mm.soft_emb_norm.weight": 1.0},
    f32_tensors=r"v\.(patch_embd|position_embd)\..*",
    f16_tensors=r"mm\.input_projection\.weight",
)


def gemma4_fields(config: ProjectorConfig) -> Fields:
    """Return what readers assume unless the file says otherwise, in addition to the usual fields. Raises
    UnsupportedError for what a file cannot say."""
    encoder = config.encoder
    heads = encoder.positive_int("num_attention_heads", MAX_HEADS)
    size = encoder.positive_int("hidden_size", 1 << 20)
    head_size = encoder.positive_int("head_dim", 1 << 12, max(size // heads, 1))
    if encoder.positive_int("num_key_value_heads", MAX_HEADS, heads) != heads:
        raise encoder.error("num_key_value_heads", f"must be {heads}, as num_attention_heads", UnsupportedError)
    if encoder.get("hidden_activation", str, GEMMA4_ACTIVATION) != GEMMA4_ACTIVATION:
        raise encoder.error("hidden_activation", f"must be {GEMMA4_ACTIVATION}", UnsupportedError)
    if encoder.child("rope_parameters").positive_float("rope_theta", GEMMA4_BASE) != GEMMA4_BASE:
        raise encoder.error("rope_parameters.rope_theta", f"must be {GEMMA4_BASE:g}", UnsupportedError)
    merge = encoder.positive_int("pooling_kernel_size", MAX_MERGE, GEMMA4_MERGE)
    return {
        **epsilon(encoder, "rms_norm_eps", 1e-6),
        **({"clip.vision.projector.scale_factor": Field.uint32(merge)} if merge != GEMMA4_MERGE else {}),
        **({"clip.vision.attention.head_dim": Field.uint32(head_size)} if head_size * heads != size else {}),
    }


def gemma4_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return bounds as tensors of one value, and the patch embedding as a convolution."""
    if name.endswith(("_min", "_max")):
        return {name: vector}
    return {name: channels_first} if name.endswith("patch_embedder.input_proj.weight") else None


GEMMA4V = ProjectorArchitecture(
    projector_type="gemma4v",
    type_key="clip.vision.projector_type",
    fields=gemma4_fields,
    prefixes={
        "model.vision_tower.encoder.": "vision_model.model.",
        "model.vision_tower.": "model.vision_tower.",
        "model.embed_vision.": "model.embed_vision.",
    },
    names=((r"\.linear\.weight$", ".weight"), (r"position_embedding_table$", "position_embedding_table.weight")),
    parts=gemma4_parts,
    sizes=lambda config: {"image_size": UNUSED_IMAGE_SIZE},  # noqa: ARG005
)


def gemma4_sound_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the feed-forward length, which is four times the length of rows."""
    return {"intermediate_size": 4 * config.encoder.positive_int("hidden_size", 1 << 17)}


def sound_fields(assumed: Mapping[str, object]) -> Callable[[ProjectorConfig], Fields]:
    """Return the function that returns the number of bands, in addition to the usual fields. It raises UnsupportedError
    if what readers assume is otherwise."""

    def fields(config: ProjectorConfig) -> Fields:
        encoder = config.encoder
        for key, value in assumed.items():
            if encoder.values.get(key, value) != value:
                raise encoder.error(key, f"must be {value}", UnsupportedError)
        return {
            "clip.audio.num_mel_bins": Field.uint32(encoder.positive_int("input_feat_size", 1 << 10, 128)),
            **epsilon(encoder, "rms_norm_eps", 1e-6, kind="audio"),
        }

    return fields


def gemma4_sound_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return bounds as tensors of one value, and convolutions over time as matrices."""
    if name.endswith(("_min", "_max")):
        return {name: vector}
    return {name: lambda values: values[:, 0]} if name.endswith("depthwise_conv1d.weight") else None


def softplus(values: Floats) -> Floats:
    """Return ln(1 + e^x)."""
    doubles = values.astype(np.float64)
    return np.logaddexp(doubles, 0.0).astype(np.float32)


GEMMA4A = ProjectorArchitecture(
    projector_type="gemma4a",
    type_key="clip.audio.projector_type",
    fields=sound_fields(GEMMA4_SOUND),
    prefixes={"model.audio_tower.": "conformer.", "model.embed_audio.": "model.embed_audio."},
    names=((r"\.linear\.", "."), (r"per_dim_scale$", "per_dim_scale.weight")),
    parts=gemma4_sound_parts,
    computed={r"a\.blk\.\d+\.per_dim_scale\.weight": softplus},
    f32_tensors=r"a\.(conv1d\.\d+|input_projection|blk\.\d+\.conv_dw)\.weight",
    is_audio=True,
    encoder_key="audio_config",
    sizes=gemma4_sound_sizes,
)


def by_channel(values: Values) -> Values:
    """Return columns that are sorted by place and then by channel in the order of channels."""
    side = isqrt(values.shape[-1] // 3)
    return np.moveaxis(values.reshape(*values.shape[:-1], side, side, 3), -1, -3).reshape(values.shape)


def unified_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return what reads the pixels of a patch in the order of channels, position embeddings by axis."""
    if name in ("v.patch_embd.weight", "v.patch_norm.1.weight", "v.patch_norm.1.bias"):
        return {name: by_channel}
    return {name: lambda values: values.swapaxes(0, 1)} if name == "v.position_embd.weight" else None


def unified_fields(config: ProjectorConfig) -> Fields:
    """Return the usual fields. Raises UnsupportedError for another number of patches than readers assume."""
    if config.encoder.get("pooling_kernel_size", int, GEMMA4_MERGE) != GEMMA4_MERGE:
        raise config.encoder.error("pooling_kernel_size", f"must be {GEMMA4_MERGE}", UnsupportedError)
    return epsilon(config.encoder, "rms_norm_eps", 1e-6)


def unified_sizes(config: ProjectorConfig) -> dict[str, int]:
    return {"image_size": UNUSED_IMAGE_SIZE, "hidden_size": config.encoder.positive_int("mm_embed_dim", 1 << 17)}


GEMMA4UV = ProjectorArchitecture(
    projector_type="gemma4uv",
    type_key="clip.vision.projector_type",
    fields=unified_fields,
    prefixes={"model.vision_embedder.": "", "model.embed_vision.": "model.embed_vision."},
    names=(
        (r"^patch_ln(\d)", r"v.patch_norm.\1"),
        (r"^pos_norm", "v.patch_norm.3"),
        (r"^patch_dense", "v.patch_embd"),
        (r"^pos_embedding$", "v.position_embd.weight"),
    ),
    parts=unified_parts,
    has_layers=False,
    sizes=unified_sizes,
)
GEMMA4UA = ProjectorArchitecture(
    projector_type="gemma4ua",
    type_key="clip.audio.projector_type",
    fields=lambda config: {
        "clip.audio.num_mel_bins": Field.uint32(UNUSED_BANDS),
        **epsilon(config.encoder, "rms_norm_eps", 1e-6, kind="audio"),
    },
    prefixes={"model.embed_audio.": "model.embed_audio."},
    is_audio=True,
    has_layers=False,
    encoder_key="audio_config",
    sizes=lambda config: {"hidden_size": config.encoder.positive_int("audio_embed_dim", 1 << 17)},
)


def gemma3n_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the size of images, and numbers that llama.cpp's files have but that say nothing of this encoder."""
    side = config.preprocessor.child("size").positive_int("height", 8192, GEMMA3N_SIDE)
    n_rows = config.preprocessor.positive_int("image_seq_length", 1 << 16, DEFAULT_TOKENS)
    return {
        "image_size": side,
        "patch_size": max(side // n_rows, 1),
        "intermediate_size": 4 * config.encoder.positive_int("intermediate_size", 1 << 18, 2048),
        "num_hidden_layers": 128,
        "num_attention_heads": config.encoder.positive_int("num_attention_heads", MAX_HEADS, 8),
    }


def gemma3n_config(config: ProjectorConfig) -> ProjectorConfig:
    """Return the configuration with the mean and the deviation of pixels: the encoder reads them as they are."""
    values = {**config.preprocessor.values, "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    return replace(config, preprocessor=replace(config.preprocessor, values=values))


def gemma3n_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return the bias of the first convolution in the shape that it has in files."""
    return {name: lambda values: values[None, :, None, None]} if name == "v.conv_stem.conv.bias" else None


GEMMA3NV = ProjectorArchitecture(
    projector_type="gemma3nv",
    type_key="clip.vision.projector_type",
    fields=lambda config: epsilon(config.root, "layer_norm_eps", 1e-6),
    prefixes={
        "model.vision_tower.timm_model.blocks.": "v.blk.",
        "model.vision_tower.timm_model.": "v.",
        "model.embed_vision.": "model.embed_vision.",
    },
    parts=gemma3n_parts,
    f32_tensors=r"v\.conv_stem\..*",
    sizes=gemma3n_sizes,
    change=gemma3n_config,
)


def gemma3n_sound_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the sizes by their usual names. Raises UnsupportedError for another number of rows than readers assume."""
    n_rows = config.root.get("audio_soft_tokens_per_image", int, GEMMA3N_ROWS)
    if n_rows != GEMMA3N_ROWS:
        raise config.root.error("audio_soft_tokens_per_image", f"must be {GEMMA3N_ROWS}", UnsupportedError)
    return {
        "intermediate_size": 4 * config.encoder.positive_int("hidden_size", 1 << 17, 1536),
        "num_hidden_layers": config.encoder.positive_int("conf_num_hidden_layers", 1 << 10, 12),
        "num_attention_heads": config.encoder.positive_int("conf_num_attention_heads", MAX_HEADS, 8),
    }


GEMMA3NA = ProjectorArchitecture(
    projector_type="gemma3na",
    type_key="clip.audio.projector_type",
    fields=sound_fields(GEMMA3N_SOUND),
    prefixes={
        "model.audio_tower.conformer.": "conformer.layers.",
        "model.audio_tower.": "model.audio_tower.",
        "model.embed_audio.": "model.embed_audio.",
    },
    names=((r"^model\.audio_tower\.subsample_conv_projection\.conv_(\d)\.norm", r"a.conv1d.\1.norm"),),
    f32_tensors=r"a\.(conv1d\.\d+|blk\.\d+\.conv_dw)\.weight",
    is_audio=True,
    encoder_key="audio_config",
    sizes=gemma3n_sound_sizes,
)
BY_CLASS = {
    "Gemma3ForConditionalGeneration": GEMMA3,
    "Gemma3nForConditionalGeneration": (GEMMA3NV, GEMMA3NA),
    "Gemma4ForConditionalGeneration": (GEMMA4V, GEMMA4A),
    "Gemma4UnifiedForConditionalGeneration": (GEMMA4UV, GEMMA4UA),
}
