"""Readers of documents: PaddleOCR-VL (SigLIP with RoPE) and dots.ocr (Qwen2-VL's patches)."""

from math import isqrt

from localinfer.conversion.projectors.projector_architecture import (
    USE_GELU,
    USE_SILU,
    Fields,
    ProjectorArchitecture,
    ProjectorConfig,
    epsilon,
    scale_factor,
)
from localinfer.gguf.source import Field

MAX_PIXELS = 1 << 27


def pixel_limits(config: ProjectorConfig) -> Fields:
    """Return the fewest and the most pixels of an image."""
    return {
        f"clip.vision.image_{kind}_pixels": Field.uint32(config.preprocessor.positive_int(f"{kind}_pixels", MAX_PIXELS))
        for kind in ("min", "max")
    }


def paddle_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the side of the largest square image."""
    return {"image_size": isqrt(config.preprocessor.positive_int("max_pixels", MAX_PIXELS))}


def paddle_fields(config: ProjectorConfig) -> Fields:
    return {**pixel_limits(config), **USE_GELU, **epsilon(config.encoder, "rms_norm_eps", 1e-6)}


def dots_fields(config: ProjectorConfig) -> Fields:
    return {
        **pixel_limits(config),
        **epsilon(config.encoder, "rms_norm_eps"),
        **scale_factor(config.encoder, "spatial_merge_size"),
        **USE_SILU,
    }


PADDLEOCR = ProjectorArchitecture(
    projector_type="paddleocr",
    fields=paddle_fields,
    prefixes={"visual.": "model.", "mlp_AR.": "mlp_AR.", "model.visual.": "model."},
    ignored=r"packing_position_embedding|vision_model\.head",
    sizes=paddle_sizes,
)
DOTS_OCR = ProjectorArchitecture(
    projector_type="dots_ocr",
    fields=dots_fields,
    prefixes={"vision_tower.": "vision_tower."},
    names=(
        (r"^vision_tower\.(blocks\.\d+\.mlp)\.fc1", r"visual.\1.gate_proj"),
        (r"^vision_tower\.(blocks\.\d+\.mlp)\.fc2", r"visual.\1.down_proj"),
        (r"^vision_tower\.(blocks\.\d+\.mlp)\.fc3", r"visual.\1.up_proj"),
    ),
    sizes=lambda config: {"image_size": 0},  # noqa: ARG005 images have any size
)
BY_CLASS = {
    "PaddleOCRVLForConditionalGeneration": PADDLEOCR,
    "PaddleOCRVisionModel": PADDLEOCR,
    "DotsOCRForCausalLM": DOTS_OCR,
}
