"""Qwen3-ASR (Qwen, 2026): three convolutions over time and frequency make 13 rows of each second; two matrices project
the rows of a transformer, which attend to those of 8 seconds."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.row_order import Indices
from localinfer.multimodal.encoder_graph.transformer import transform, two_layers
from localinfer.multimodal.encoder_graph.zero_rows import with_zero_rows
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.framing import TAPS, Floats, Framing
from localinfer.multimodal.sounds.mel import MelProcessor
from localinfer.multimodal.sounds.sound_builder import ACTIVATION, SoundBuilder

SoundProcessor = MelProcessor
ARCHITECTURES = ("qwen3vl", "qwen3vlmoe")
SECOND = 100  # frames
FRAMING = Framing(window=8 * SECOND, chunk=SECOND, halvings=3)
SQUARE = (TAPS, TAPS)
arrange = enclose("<|audio_start|>", "<|audio_end|>")


def build(g: SoundBuilder) -> Buffer:
    """The convolutions see whole seconds; the rows of what follows the sound in the last one are left out."""
    g.use_layer_norm()
    seconds, n, channels = len(g.lengths), g.embedding_length, g.tensors.n_rows("a.conv2d.1")
    times, bands = (halved(size) for size in (SECOND, g.n_bands))
    x = g.enter("a.conv2d.1", channels, 1, SQUARE, seconds * times * bands)
    for number in (2, 3):
        padded = x if number == 2 else with_zero_rows(g, x)
        x = g.convolve(padded, f"a.conv2d.{number}", channels, SQUARE, squares(seconds, times, bands))
        times, bands = halved(times), halved(bands)
    counts = [g.framing.positions(length) for length in g.lengths]
    kept = np.concatenate([second * times + np.arange(count) for second, count in enumerate(counts)])
    x = g.gather(x, (kept[:, None] * bands + np.arange(bands)).astype(np.int32))
    x = g.product(x, g.tensors.columns_by_row("a.conv_out", n, channels, bands))
    table = g.tensors.positions(times, n)
    g.add_constant(x, np.concatenate([table[:count] for count in counts]))
    transform(g, x, ACTIVATION)
    return two_layers(g, g.norm(x, "a.post_ln"), "mm.a.mlp.1", "mm.a.mlp.2", ACTIVATION)


def prepare(features: Floats, lengths: list[int]) -> Floats:
    """Return the square of 3 x 3 values that each row of the first convolution reads, (rows, band * time): a row for
    each second, time and band."""
    size = sum(lengths)
    seconds = np.zeros((len(lengths) * SECOND, features.shape[1]), np.float32)
    seconds[:size] = features[:size]
    padded = np.pad(seconds.reshape(len(lengths), SECOND, -1), ((0, 0), (1, 1), (1, 1)))
    found = sliding_window_view(padded, SQUARE, (1, 2))[:, ::2, ::2]  # second, time, band, tap of time, tap of band
    return found.transpose(0, 1, 2, 4, 3).reshape(-1, TAPS * TAPS)


def squares(seconds: int, times: int, bands: int) -> Indices:
    """Return the rows that each row of a convolution of stride 2 reads, in the order of bands, then of times. The row
    behind the last one is zero."""
    numbers = np.arange(seconds * times * bands).reshape(seconds, times, bands)
    padded = np.pad(numbers, ((0, 0), (1, 1), (1, 1)), constant_values=numbers.size)
    found = sliding_window_view(padded, SQUARE, (1, 2))[:, ::2, ::2]
    return found.transpose(0, 1, 2, 4, 3).reshape(-1, TAPS * TAPS).astype(np.int32)


def halved(size: int) -> int:
    """Return the number of results of a convolution of stride 2."""
    return -(-size // 2)
