"""The encoder of Fast Conformer (Rekesh et al., 2023): convolutions make a row of 8 frames; in each layer, attention
with relative positions (Dai et al., 2019) and a convolution over time are between two halves of a feed-forward network
(Gulati et al., 2020)."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.positions import frequencies
from localinfer.multimodal.encoder_graph.row_order import consecutive
from localinfer.multimodal.encoder_graph.transformer import two_layers
from localinfer.multimodal.sounds.depthwise import Taps, convolve, make_taps, over_squares, over_time
from localinfer.multimodal.sounds.framing import TAPS, Floats
from localinfer.multimodal.sounds.sound_builder import SoundBuilder
from localinfer.multimodal.sounds.span_attention import SpanAttention, all_rows

SQUARE = (TAPS, TAPS)
MAX_WIDTH = 255  # of convolutions over time
FACTOR = 8  # frames that become a row
HALF = 0.5  # the weight of each half of the feed-forward network


def prepare(features: Floats, lengths: list[int]) -> Floats:
    """Return the square of 3 x 3 values that each row of the first convolution reads, (rows, time * band): a row for
    every second time and band."""
    padded = np.pad(features[: sum(lengths)], 1)
    return sliding_window_view(padded, SQUARE)[::2, ::2].reshape(-1, TAPS * TAPS)


def subsample(g: SoundBuilder, bias_first: int = 0) -> Buffer:
    """Return a row for each 8 frames: three convolutions of stride 2 over time and frequency, two of which are
    depthwise and followed by a matrix, and a matrix for all bands. The shape of a bias in the file begins with
    `bias_first` ones."""
    channels = g.tensors.n_rows("a.conv1d.0")
    times, bands = halved(g.n_frames), halved(g.n_bands)
    first = (1,) * bias_first
    x = g.enter("a.conv1d.0", channels, 1, SQUARE, times * bands, "relu", first)
    for number in (2, 5):
        taps = make_taps(g, over_squares(times, bands), times * bands)
        x = convolve(g, x, *g.tensors.depthwise(f"a.conv1d.{number}", channels, 1, *SQUARE, bias_first=first), taps)
        times, bands, name = halved(times), halved(bands), f"a.conv1d.{number + 1}"
        matrix = g.tensors.convolution_of_rows(name, channels, channels, 1, 1)
        x = g.gate(g.product(x, matrix, bias=g.tensors.convolution_bias(name, channels, 2, first)), None, "relu")
    x = g.gather(x, consecutive((times, bands)))
    out = "a.pre_encode.out"
    weight = g.tensors.columns_by_row(out, g.embedding_length, channels, bands)
    return g.product(x, weight, bias=g.tensors.bias(out, g.embedding_length))


def transform(g: SoundBuilder, x: Buffer, depthwise_first: tuple[int, ...] = ()) -> None:
    """Apply all layers to the residual stream. The shape of a depthwise convolution in the file begins with
    `depthwise_first`."""
    g.use_layer_norm()
    attention, vectors = SpanAttention.make(g, g.heads, all_rows(g.graph.batch)), distance_rows(g)
    width = kernel_width(g)
    taps = make_taps(g, over_time(g.graph.batch, width // 2, width // 2), g.graph.batch)
    for blk in g.layers(x):
        feed_forward(g, x, f"{blk}ffn_norm", f"{blk}ffn_up", f"{blk}ffn_down")
        attend(g, x, blk, attention, vectors)
        convolution_module(g, x, blk, taps, depthwise_first)
        feed_forward(g, x, f"{blk}ffn_norm_1", f"{blk}ffn_up_1", f"{blk}ffn_down_1")
        g.norm(x, f"{blk}ln2", in_place=True)


def feed_forward(g: SoundBuilder, x: Buffer, norm: str, up: str, down: str) -> None:
    """Add half of what a feed-forward network makes of x."""
    g.add(x, two_layers(g, g.norm(x, norm), up, down, "silu", n_out=x.n), HALF)


def attend(g: SoundBuilder, x: Buffer, blk: str, attention: SpanAttention, vectors: Buffer) -> None:
    """Add the attention of all rows to each other. The position vectors are a matrix times those of distances."""
    h, n = g.norm(x, f"{blk}ln1"), g.heads.count * g.heads.key
    q, k, v = (g.matmul(h, f"{blk}attn_{name}", n) for name in "qkv")
    biases = [g.tensors.floats(f"{blk}pos_bias_{name}", g.heads.count, g.heads.key) for name in "uv"]
    projected = g.matmul(vectors, f"{blk}linear_pos", n)
    y = attention.attend(blk, (q, k, v), projected, biases=(biases[0], biases[1]))
    g.matmul(y, f"{blk}attn_out", x.n, add_to=x)


def convolution_module(g: SoundBuilder, x: Buffer, blk: str, taps: Taps, first: tuple[int, ...]) -> None:
    """Add a gated depthwise convolution over time, whose batch normalization is part of its weights."""
    value, gate = g.slices(g.norm(x, f"{blk}norm_conv"), f"{blk}conv_pw1", x.n, x.n)
    h = g.gate(gate, value, "sigmoid")
    weights = g.tensors.depthwise(f"{blk}conv_dw", x.n, taps.width, norm=f"{blk}conv_norm", first=first)
    h = g.gate(convolve(g, h, *weights, taps), None, "silu")
    g.matmul(h, f"{blk}conv_pw2", x.n, add_to=x)


def distance_rows(g: SoundBuilder) -> Buffer:
    """Return the sinusoids of distances from the number of rows - 1 to its negative, sines and cosines in turn."""
    distances = np.arange(g.graph.batch - 1, -g.graph.batch, -1)
    angles = distances[:, None] * frequencies(g.embedding_length)
    values = np.stack([np.sin(angles), np.cos(angles)], 2).reshape(len(angles), -1).astype(np.float32)
    y = g.graph.buffer(g.embedding_length, g.rows(len(values)))
    g.constants.set_rows(y, 0, values)
    return y


def kernel_width(g: SoundBuilder) -> int:
    """Return the number of rows that the convolutions over time read. Raises LocalInferError unless it is odd."""
    name = f"{g.layer_prefix}0.conv_dw.weight"
    tensor = g.f.tensors.get(name)
    if tensor is None:
        raise g.f.error(f"tensor {name}", "is missing")
    width = tensor.shape[-1]
    if width % 2 == 0 or width > MAX_WIDTH:
        raise g.f.error(f"tensor {name}", f"has {width} taps; they must be an odd number up to {MAX_WIDTH}")
    return width


def halved(size: int) -> int:
    """Return the number of results of a convolution of stride 2."""
    return -(-size // 2)
