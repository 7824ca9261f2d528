"""EXAONE 4.5: the encoder of Qwen2.5-VL, whose heads share keys and values."""

from dataclasses import replace

from localinfer.conversion.projectors.ocr import pixel_limits
from localinfer.conversion.projectors.projector_architecture import (
    USE_SILU,
    Fields,
    Parts,
    ProjectorConfig,
    epsilon,
    split_frames,
)
from localinfer.conversion.projectors.qwen import PATCH_EMBEDDING, QWEN25VL, full_attention_period
from localinfer.gguf.source import Field

EPSILON = "rms_norm_eps"
MAX_HEADS, MAX_WINDOW = 1 << 12, 4096


def exaone_fields(config: ProjectorConfig) -> Fields:
    """Return the size of windows in pixels and the number of heads of keys and values, in addition to what Qwen2.5-VL
    has, and the limits of the size of an image."""
    encoder = config.encoder
    return {
        **USE_SILU,
        **pixel_limits(config),
        **epsilon(encoder if EPSILON in encoder.values else config.root, EPSILON, 1e-6),
        **full_attention_period(config),
        "clip.vision.attention.head_count_kv": Field.uint32(encoder.positive_int("num_key_value_heads", MAX_HEADS)),
        "clip.vision.window_size": Field.uint32(encoder.positive_int("window_size", MAX_WINDOW)),
    }


def exaone_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    return split_frames(name, PATCH_EMBEDDING)


EXAONE4_5 = replace(QWEN25VL, projector_type="exaone4_5", fields=exaone_fields, parts=exaone_parts)
BY_CLASS = {"Exaone4_5_ForConditionalGeneration": EXAONE4_5}
