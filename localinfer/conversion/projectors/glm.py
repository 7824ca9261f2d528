"""GLM-4.1V and later: Qwen2-VL's patches with a convolution that joins four of them."""

from dataclasses import replace

from localinfer.conversion.projectors.projector_architecture import (
    MAX_MERGE,
    MAX_PATCH,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    activation,
    epsilon,
    split_frames,
)
from localinfer.conversion.projectors.qwen import PATCH_EMBEDDING
from localinfer.gguf.source import Field

MAX_TOKENS = 1 << 20


def glm4v_fields(config: ProjectorConfig) -> Fields:
    return {**activation(config.encoder), **epsilon(config.encoder, "rms_norm_eps", 1e-5)}


def glm4v_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    return split_frames(name, PATCH_EMBEDDING)


GLM4V = ProjectorArchitecture(
    projector_type="glm4v",
    fields=glm4v_fields,
    prefixes={"model.visual.": "visual.", "visual.": "visual."},
    parts=glm4v_parts,
)


def glm5v_fields(config: ProjectorConfig) -> Fields:
    """Return the limit of gates and those of the number of tokens, which are stored in pixels."""
    encoder, processor = config.encoder, config.preprocessor
    side = processor.positive_int("patch_size", MAX_PATCH, 14) * processor.positive_int("merge_size", MAX_MERGE, 2)
    limits = {
        f"clip.vision.image_{name}_pixels": Field.uint32(processor.positive_int(key, MAX_TOKENS) * side**2)
        for name in ("min", "max")
        if (key := f"{name}_image_tokens") in processor.values
    }
    return glm4v_fields(config) | limits | {
        "clip.vision.spatial_merge_size": Field.uint32(encoder.positive_int("spatial_merge_size", MAX_MERGE, 2)),
        "clip.vision.swiglu_clamp": Field.float32(encoder.positive_float("swiglu_limit")),
    }  # fmt: skip


GLM5V = replace(GLM4V, projector_type="glm5v", fields=glm5v_fields)
BY_CLASS = {
    "Glm4vForConditionalGeneration": GLM4V,
    "Glm4vMoeForConditionalGeneration": GLM4V,
    "GlmOcrForConditionalGeneration": GLM4V,
    "Glm5NextForConditionalGeneration": GLM5V,
}
