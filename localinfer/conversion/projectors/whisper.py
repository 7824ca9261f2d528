"""Whisper's encoder: Ultravox, Qwen2-Audio and Voxtral."""

from collections.abc import Callable
from dataclasses import replace

from localinfer.conversion.projectors.projector_architecture import (
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    epsilon,
)
from localinfer.gguf.source import Field

VOXTRAL_STACK = 4  # frames that become one token


def whisper_sizes(config: ProjectorConfig) -> dict[str, int]:
    """Return the sizes by the usual names."""
    names = {
        "hidden_size": "d_model",
        "intermediate_size": "encoder_ffn_dim",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    encoder = config.encoder
    return {new: encoder.positive_int(old, 1 << 20) for new, old in names.items() if old in encoder.values}


def whisper_fields(config: ProjectorConfig) -> Fields:
    return {
        "clip.audio.num_mel_bins": Field.uint32(config.encoder.positive_int("num_mel_bins", 1 << 12)),
        **epsilon(config.encoder, "layer_norm_eps", 1e-5, kind="audio"),
    }


def with_stack(stack: Callable[[ProjectorConfig], int]) -> Callable[[ProjectorConfig], Fields]:
    """Return the function for encoders several of whose frames become one token."""
    return lambda config: {
        **whisper_fields(config),
        "clip.audio.projector.stack_factor": Field.uint32(stack(config)),
    }


def whisper_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001
    """Return the biases of convolutions as columns."""
    return {name: lambda values: values[:, None]} if name.endswith(("conv1.bias", "conv2.bias")) else None


QWEN2A = ProjectorArchitecture(
    projector_type="qwen2a",
    fields=whisper_fields,
    prefixes={"audio_tower.": "audio_tower.", "multi_modal_projector.": "audio.multi_modal_projector."},
    parts=whisper_parts,
    f16_tensors=r"a\.conv1d\.\d\.weight",
    is_audio=True,
    encoder_key="audio_config",
    sizes=whisper_sizes,
)
ULTRAVOX = replace(
    QWEN2A,
    projector_type="ultravox",
    fields=with_stack(lambda config: config.root.positive_int("stack_factor", 64)),
)
VOXTRAL = replace(QWEN2A, projector_type="voxtral", fields=with_stack(lambda config: VOXTRAL_STACK))  # noqa: ARG005
BY_CLASS = {
    "Qwen2AudioForConditionalGeneration": QWEN2A,
    "UltravoxModel": ULTRAVOX,
    "VoxtralForConditionalGeneration": VOXTRAL,
}
