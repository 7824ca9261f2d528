"""LFM2-VL: SigLIP 2 with images of any size; LFM2-Audio: a conformer."""

from localinfer.conversion.projectors.projector_architecture import (
    USE_GELU,
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    Values,
    epsilon,
    scale_factor,
)
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field

IMAGE_SIZE = 256  # readers need one; images have any size
MAX_LAYERS = 1024
CONFORMER_EPSILON = 1e-5  # of norms


def lfm2_fields(config: ProjectorConfig) -> Fields:
    """Return the number of layers up to the one whose output is used, in addition to the usual fields."""
    n_layer = config.encoder.positive_int("num_hidden_layers", MAX_LAYERS)
    used = config.root.get("vision_feature_layer", int, -1) + 1 + n_layer
    if not 0 < used <= n_layer:
        raise config.root.error("vision_feature_layer", "is not supported", UnsupportedError)
    return {
        **epsilon(config.encoder, "layer_norm_eps"),
        **scale_factor(config.root, "downsample_factor", 2),
        **USE_GELU,
        "clip.vision.block_count": Field.uint32(used),
    }


def channels_first(values: Values) -> Values:
    """Return the patch embedding, whose columns are sorted by place and then by channel, as a convolution."""
    size = round((values.shape[1] / 3) ** 0.5)
    return values.reshape(len(values), size, size, 3).transpose(0, 3, 1, 2)


def lfm2_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    return {name: channels_first} if name.endswith("patch_embedding.weight") else None


LFM2 = ProjectorArchitecture(
    projector_type="lfm2",
    fields=lfm2_fields,
    prefixes={
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "vision_tower.": "vision_tower.",
        "multi_modal_projector.": "multi_modal_projector.",
    },
    names=((r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model."),),
    parts=lfm2_parts,
    sizes=lambda config: {"image_size": IMAGE_SIZE},  # noqa: ARG005
)


def conformer_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the sizes by the usual names. Nothing reads the feed-forward length, which llama.cpp's files have."""
    width = config.encoder.positive_int("d_model", 1 << 17)
    heads = config.encoder.positive_int("n_heads", 1 << 12)
    return {"hidden_size": width, "intermediate_size": width, "num_attention_heads": heads}


def conformer_fields(config: ProjectorConfig) -> Fields:
    return {
        "clip.audio.num_mel_bins": Field.uint32(config.encoder.positive_int("feat_in", 1 << 10)),
        "clip.audio.attention.layer_norm_epsilon": Field.float32(CONFORMER_EPSILON),
    }


def conformer_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return convolutions over time as matrices, and biases of convolutions over time and frequency in their shape."""
    if name.startswith("conformer.pre_encode.conv.") and name.endswith(".bias"):
        return {name: lambda values: values[:, None, None]}
    if name.endswith(".depthwise_conv.weight"):
        return {name: lambda values: values[:, 0]}
    if ".pointwise_conv" in name and name.endswith(".weight"):
        return {name: lambda values: values[:, :, 0]}
    return None


LFM2A = ProjectorArchitecture(
    projector_type="lfm2a",
    fields=conformer_fields,
    prefixes={each: each for each in ("conformer.", "audio_adapter.", "audio_embedding.")},
    ignored=r"\.num_batches_tracked$",
    parts=conformer_parts,
    batch_norm=r"conformer\.layers\.\d+\.conv\.batch_norm",
    f32_tensors=r"a\.(conv1d\.\d+|blk\.\d+\.conv_\w+)\.(weight|bias)",
    is_audio=True,
    encoder_key="encoder",
    sizes=conformer_sizes,
)
BY_CLASS = {"Lfm2VlForConditionalGeneration": LFM2, "Lfm2AudioForConditionalGeneration": LFM2A}
