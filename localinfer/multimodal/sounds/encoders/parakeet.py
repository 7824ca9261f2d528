"""Nemotron Nano Omni (NVIDIA, 2026): Parakeet's Fast Conformer, and two matrices behind RMSNorm.

Rows are those of the frames that are sound. transformers has a row more, of silence, if 8 divides their number.
"""

import numpy as np

from localinfer.errors import UnsupportedError
from localinfer.gguf.dequantize import dequantize
from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.transformer import two_layers
from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.encoders import conformer
from localinfer.multimodal.sounds.framing import ALL_FRAMES, Framing
from localinfer.multimodal.sounds.nemo_mel import N_FFT, WINDOW, NemoProcessor
from localinfer.multimodal.sounds.sound_builder import SoundBuilder
from localinfer.multimodal.sounds.sound_input import Spectrogram
from localinfer.multimodal.sounds.spectrum import Doubles, hann, slaney_filters

ARCHITECTURES = ("nemotron_h", "nemotron_h_moe")
FRAMING = Framing(window=ALL_FRAMES, halvings=3)
EPSILON = 1e-5  # of the projector's norm
TOLERANCE = 1e-3  # of the largest value of filters and windows
prepare, arrange = conformer.prepare, enclose("<so_start>", "<so_end>")


class SoundProcessor(NemoProcessor):
    """Makes the spectrogram without its last frame, which is zeros."""

    def n_frames(self, n_samples: int) -> int:
        """Return the number of frames that are sound."""
        return super().n_frames(n_samples) - 1

    def __call__(self, sound: Sound) -> Spectrogram:
        features = super().__call__(sound).features[:-1]
        return Spectrogram(features, len(features))


def build(g: SoundBuilder) -> Buffer:
    """Subsampling, the layers, RMSNorm and a network with one hidden layer."""
    if g.hparams.count("subsampling_factor", maximum=64) != conformer.FACTOR:
        raise g.hparams.error("subsampling_factor", f"must be {conformer.FACTOR}")
    if g.hparams.count("conv_kernel_size", maximum=conformer.MAX_WIDTH) != conformer.kernel_width(g):
        raise g.hparams.error("conv_kernel_size", f"is not {conformer.kernel_width(g)}, the width of the convolutions")
    require_equal(g, "a.mel_filters", slaney_filters(g.n_bands, N_FFT).T)
    require_equal(g, "a.window", hann(WINDOW, WINDOW, periodic=False))
    x = conformer.subsample(g, bias_first=1)
    conformer.transform(g, x, depthwise_first=(1, 1))
    x = g.norm_groups(x, x.n, "mm.a.norm_pre.weight", eps=EPSILON)
    return two_layers(g, x, "mm.a.mlp.1", "mm.a.mlp.2", "relu_squared")


def require_equal(g: SoundBuilder, name: str, expected: Doubles) -> None:
    """Raise UnsupportedError unless a constant of the spectrogram that the file has is the one that is computed."""
    tensor = g.f.tensors.get(name)
    if tensor is None:
        return
    g.tensors.accept(name)
    is_equal = tensor.n_elements == expected.size
    if not is_equal or np.abs(dequantize(tensor).reshape(expected.shape) - expected).max() > TOLERANCE * expected.max():
        raise g.f.error(f"tensor {name}", "is not the one of NeMo's spectrograms", UnsupportedError)
