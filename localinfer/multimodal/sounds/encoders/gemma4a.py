"""Gemma 4 (Google, 2026): a conformer (Gulati et al., 2020) whose rows attend to the last half second, with relative
positions; its products are clipped. 25 rows a second."""

import math

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.clipped_products import (
    clipped,
    clipped_network,
    clipped_product,
    read_bounds,
)
from localinfer.multimodal.encoder_graph.encoder_builder import PatchInput
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats, constant
from localinfer.multimodal.encoder_graph.matrices import n_rows_of
from localinfer.multimodal.encoder_graph.row_order import consecutive
from localinfer.multimodal.encoder_graph.zero_rows import with_zero_rows
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.depthwise import Taps, convolve, make_taps, over_squares, over_time
from localinfer.multimodal.sounds.encoders.conformer import HALF, SQUARE, halved, kernel_width, prepare
from localinfer.multimodal.sounds.framing import Framing
from localinfer.multimodal.sounds.gemma_mel import Gemma4Processor
from localinfer.multimodal.sounds.sound_builder import SoundBuilder
from localinfer.multimodal.sounds.span_attention import SpanAttention, Spans

SoundProcessor = Gemma4Processor
ARCHITECTURES = ("gemma4",)
FRAMING = Framing(halvings=2)
EPSILON = 1e-6  # some files have another number, which is wrong
SPAN = 12  # rows to which a row attends: itself and those before it
CAP = 50.0  # of scores
K_SCALE = math.log(1 + math.e) / math.log(2)
LONGEST_PERIOD = 10_000.0  # of position vectors, in units of 2 pi
arrange = enclose("<|audio>", "<audio|>")
__all__ = ["ARCHITECTURES", "FRAMING", "SoundProcessor", "arrange", "build", "prepare"]


def build(g: SoundBuilder) -> Buffer:
    """Two convolutions over time and frequency, the layers, two matrices with a norm between them."""
    g.model.eps = EPSILON
    x, count = subsample(g), g.graph.batch
    vectors, rows = position_rows(g), np.arange(count, dtype=np.int32)
    attention = SpanAttention.make(g, g.heads, Spans(np.maximum(rows - SPAN + 1, 0), rows, count, SPAN, SPAN + 1))
    taps = make_taps(g, over_time(count, kernel_width(g) - 1, 0), count)
    for blk in g.layers():
        feed_forward(g, x, blk, "")
        attend(g, x, blk, attention, vectors)
        convolution_module(g, x, blk, taps)
        feed_forward(g, x, blk, "_1")
        g.norm(x, f"{blk}ln2", in_place=True)
    x = g.matmul(x, "a.pre_encode.out", n_rows_of(g, "a.pre_encode.out"))
    return g.matmul(g.norm_groups(x, x.n), "mm.a.input_projection", g.output_length)


def subsample(g: SoundBuilder) -> Buffer:
    """Return a row for each 4 frames: two convolutions of stride 2 over time and frequency, each with LayerNorm, and a
    matrix for all bands."""
    channels, n_out = (g.tensors.n_rows(f"a.conv1d.{number}") for number in (0, 1))
    times, bands = halved(g.n_frames), halved(g.n_bands)
    weight, count = g.tensors.convolution("a.conv1d.0", channels, 1, *SQUARE), times * bands
    patches = g.graph.buffer(weight.shape[1], g.rows(count))
    no_rows = np.zeros((0, patches.n), np.float32)
    g.input = PatchInput(patches, 0, consecutive((count,)), patches, no_rows)
    x = with_zero_rows(g, activated(g, g.product(patches, weight), "a.conv1d.0"))
    numbers = over_squares(times, bands)
    gathered = g.gather(x, np.where(numbers < 0, count, numbers))
    x = g.product(gathered, g.tensors.convolution_of_rows("a.conv1d.1", n_out, channels, *SQUARE))
    x = g.gather(activated(g, x, "a.conv1d.1"), consecutive((halved(times), halved(bands))))
    return g.matmul(x, "a.input_projection", g.embedding_length)


def activated(g: SoundBuilder, x: Buffer, name: str) -> Buffer:
    """Return the activations of a convolution, after LayerNorm of the channels."""
    return g.gate(g.default_layer_norm(x, f"{name}.norm", EPSILON), None, "relu")


def position_rows(g: SoundBuilder) -> Buffer:
    """Return the sinusoids of the distances from SPAN to 0: all sines, then all cosines."""
    n = g.embedding_length // 2
    frequencies = LONGEST_PERIOD ** -(np.arange(n) / max(n - 1, 1))
    angles = np.arange(SPAN, -1, -1)[:, None] * frequencies
    values: Floats = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
    y = g.graph.buffer(g.embedding_length, g.rows(len(values)))
    g.constants.append((y.floats, 0, values))
    return y


def feed_forward(g: SoundBuilder, x: Buffer, blk: str, number: str) -> None:
    """Add half of what a feed-forward network makes of x, after a norm."""
    up, down = (f"{blk}ffn_{name}{number}" for name in ("up", "down"))
    y = clipped_network(g, g.norm(x, f"{blk}ffn_norm{number}"), (up,), down, "silu", x.n)
    g.add(x, g.norm(y, f"{blk}ffn_post_norm{number}"), HALF)


def attend(g: SoundBuilder, x: Buffer, blk: str, attention: SpanAttention, vectors: Buffer) -> None:
    """Add the attention of each row to those of its span. The position vectors are a matrix times those of distances;
    each dimension of the queries has a factor."""
    h, heads = g.norm(x, f"{blk}attn_pre_norm"), g.heads
    q, k, v = (clipped_product(g, h, f"{blk}attn_{name}", heads.count * heads.key) for name in "qkv")
    name = f"{blk}per_dim_scale.weight"
    g.scale_by(q, constant(name, np.tile(g.tensors.values(name, heads.key), heads.count)))
    g.scale(k, K_SCALE)
    projected = g.matmul(vectors, f"{blk}attn_k_rel", heads.count * heads.key)
    scale = heads.key**-0.5 / math.log(2)
    y = attention.attend(blk, (q, k, v), projected, scale=scale, cap=CAP)
    g.add_norm(x, clipped_product(g, y, f"{blk}attn_out", x.n), f"{blk}attn_post_norm")


def convolution_module(g: SoundBuilder, x: Buffer, blk: str, taps: Taps) -> None:
    """Add a gated depthwise convolution over the last rows. In files, the name of the norm before it is conv_norm."""
    matrix = f"{blk}conv_pw1"
    h = clipped(g, g.norm(x, f"{blk}conv_norm"), read_bounds(g, matrix, "input"))
    bounds = read_bounds(g, matrix, "output")
    value, gate = (clipped(g, each, bounds, in_place=True) for each in g.slices(h, matrix, x.n, x.n))
    weights = g.tensors.depthwise(f"{blk}conv_dw", x.n, taps.width)
    h = g.norm(convolve(g, g.gate(gate, value, "sigmoid"), *weights, taps), f"{blk}norm_conv")
    g.add(x, clipped_product(g, g.gate(h, None, "silu"), f"{blk}conv_pw2", x.n))
