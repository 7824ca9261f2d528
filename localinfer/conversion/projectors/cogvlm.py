"""CogVLM and CogVLM2: EVA2-CLIP, a gated network, and in CogVLM2 a convolution between them."""

from dataclasses import replace

from localinfer.conversion.architectures.cogvlm import KV_HEADS
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.projectors.projector_architecture import (
    Fields,
    ProjectorArchitecture,
    ProjectorConfig,
    epsilon,
)
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field

CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


def cogvlm_fields(config: ProjectorConfig) -> Fields:
    """Return the epsilon, and for CogVLM2 the side of the squares of patches that its convolution merges."""
    name = config.encoder.get("hidden_act", str, "gelu")
    if name != "gelu":
        raise config.encoder.error("hidden_act", f"'{name}' is not supported", UnsupportedError)
    merge = {"clip.vision.spatial_merge_size": Field.uint32(2)} if KV_HEADS in config.root.values else {}
    return {**epsilon(config.encoder, "layer_norm_eps", 1e-6), **merge}


def with_means(config: ProjectorConfig) -> ProjectorConfig:
    """Return the files with the mean and the standard deviation of CLIP, which published checkpoints have in code."""
    values = CLIP | dict(config.preprocessor.values)
    return replace(config, preprocessor=JsonObject(config.preprocessor.path, values))


COGVLM = ProjectorArchitecture(
    projector_type="cogvlm",
    fields=cogvlm_fields,
    prefixes={"model.vision.": "model.vision."},
    names=((r"^model\.vision\.conv\.", "mm.patch_merger."),),
    change=with_means,
)
BY_CLASS = {"CogVLMForCausalLM": COGVLM}
