"""GLM-4.1V and later: Qwen2-VL's patches with a convolution that joins four of them."""

from localinfer.conversion.projectors.projector_architecture import (
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    activation,
    epsilon,
    split_frames,
)
from localinfer.conversion.projectors.qwen import PATCH_EMBEDDING


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
BY_CLASS = {
    "Glm4vForConditionalGeneration": GLM4V,
    "Glm4vMoeForConditionalGeneration": GLM4V,
    "GlmOcrForConditionalGeneration": GLM4V,
}
