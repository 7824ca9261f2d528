"""The conformer (Gulati et al., 2020) of Gemma 3n and Gemma 4: two convolutions over time and frequency, and layers
whose rows attend to the last half second, with relative positions. Products may be clipped. 25 rows a second."""

import math
from collections.abc import Callable
from typing import NamedTuple

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
from localinfer.multimodal.encoder_graph.row_order import consecutive
from localinfer.multimodal.encoder_graph.zero_rows import with_zero_rows
from localinfer.multimodal.sounds.depthwise import Taps, convolve, make_taps, over_squares, over_time
from localinfer.multimodal.sounds.encoders.conformer import HALF, SQUARE, halved, kernel_width
from localinfer.multimodal.sounds.sound_builder import SoundBuilder
from localinfer.multimodal.sounds.span_attention import SpanAttention, Spans

MAX_DISTANCE = 12  # of position vectors
CAP = 50.0  # of scores
LONGEST_PERIOD = 10_000.0  # of position vectors, in units of 2 pi

Activated = Callable[[SoundBuilder, Buffer, str, int], Buffer]


class LayerNames(NamedTuple):
    """The names of what differs between the families, in a layer of a file."""

    attn_norm: str
    attn_post_norm: str
    positions: str
    output_norm: str


class Attention(NamedTuple):
    """What the attention of all layers shares: the spans, the position vectors, and the factor of keys. `factors`
    returns those of the dimensions of queries in a layer."""

    spans: SpanAttention
    vectors: Buffer
    factors: Callable[[str], Floats]
    k_scale: float = 1.0


def subsample(g: SoundBuilder, activated: Activated, matrix: str, before: int = 1) -> Buffer:
    """Return a row for each 4 frames: two convolutions of stride 2 over time and frequency, and a matrix for all bands.
    `activated` returns the activations of a convolution by name, in place or not, whose rows are in the order of times,
    then of the given number of bands. `before` of 3 times precede that of a row."""
    channels, n_out = (g.tensors.n_rows(f"a.conv1d.{number}") for number in (0, 1))
    times, bands = halved(g.n_frames), halved(g.n_bands)
    weight, count = g.tensors.convolution("a.conv1d.0", channels, 1, *SQUARE), times * bands
    patches = g.graph.buffer(weight.shape[1], g.rows(count))
    no_rows = np.zeros((0, patches.n), np.float32)
    g.input = PatchInput(patches, 0, consecutive((count,)), patches, no_rows)
    x = with_zero_rows(g, activated(g, g.product(patches, weight), "a.conv1d.0", bands))
    numbers = over_squares(times, bands, before)
    gathered = g.gather(x, np.where(numbers < 0, count, numbers))
    x = g.product(gathered, g.tensors.convolution_of_rows("a.conv1d.1", n_out, channels, *SQUARE))
    times, bands = halved(times), halved(bands)
    x = g.gather(activated(g, x, "a.conv1d.1", bands), consecutive((times, bands)))
    return g.matmul(x, matrix, g.embedding_length)


def transform(g: SoundBuilder, x: Buffer, attention: Attention, names: LayerNames) -> None:
    """Apply all layers to the residual stream."""
    count = g.graph.batch
    taps = make_taps(g, over_time(count, kernel_width(g) - 1, 0), count)
    for blk in g.layers(x):
        feed_forward(g, x, blk, "")
        attend(g, x, blk, attention, names)
        convolution_module(g, x, blk, taps)
        feed_forward(g, x, blk, "_1")
        g.norm(x, f"{blk}{names.output_norm}", in_place=True)


def past_rows(g: SoundBuilder, span: int) -> SpanAttention:
    """Return the attention of rows to themselves and the `span` - 1 rows before them."""
    count = g.graph.batch
    rows = np.arange(count, dtype=np.int32)
    spans = Spans(np.maximum(rows - span + 1, 0), rows, count, MAX_DISTANCE, MAX_DISTANCE + 1)
    return SpanAttention.make(g, g.heads, spans)


def position_rows(g: SoundBuilder) -> Buffer:
    """Return the sinusoids of the distances from MAX_DISTANCE to 0: all sines, then all cosines."""
    n = g.embedding_length // 2
    frequencies = LONGEST_PERIOD ** -(np.arange(n) / max(n - 1, 1))
    angles = np.arange(MAX_DISTANCE, -1, -1)[:, None] * frequencies
    values: Floats = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
    y = g.graph.buffer(g.embedding_length, g.rows(len(values)))
    g.constants.set_rows(y, 0, values)
    return y


def feed_forward(g: SoundBuilder, x: Buffer, blk: str, number: str) -> None:
    """Add half of what a feed-forward network makes of x, after a norm."""
    up, down = (f"{blk}ffn_{name}{number}" for name in ("up", "down"))
    y = clipped_network(g, g.norm(x, f"{blk}ffn_norm{number}"), (up,), down, "silu", x.n)
    g.add(x, g.norm(y, f"{blk}ffn_post_norm{number}"), HALF)


def attend(g: SoundBuilder, x: Buffer, blk: str, attention: Attention, names: LayerNames) -> None:
    """Add the attention of each row to those of its span. The position vectors are a matrix times those of distances;
    each dimension of the queries has a factor."""
    h, heads = g.norm(x, f"{blk}{names.attn_norm}"), g.heads
    q, k, v = (clipped_product(g, h, f"{blk}attn_{name}", heads.count * heads.key) for name in "qkv")
    g.scale_by(q, constant(f"{blk}per_dim_scale", np.tile(attention.factors(blk), heads.count)))
    if attention.k_scale != 1:
        g.scale(k, attention.k_scale)
    projected = g.matmul(attention.vectors, f"{blk}{names.positions}", heads.count * heads.key)
    scale = heads.key**-0.5 / math.log(2)
    y = attention.spans.attend(blk, (q, k, v), projected, scale=scale, cap=CAP)
    g.add_norm(x, clipped_product(g, y, f"{blk}attn_out", x.n), f"{blk}{names.attn_post_norm}")


def convolution_module(g: SoundBuilder, x: Buffer, blk: str, taps: Taps) -> None:
    """Add a gated depthwise convolution over the last rows. In files, the name of the norm before it is conv_norm."""
    matrix = f"{blk}conv_pw1"
    h = clipped(g, g.norm(x, f"{blk}conv_norm"), read_bounds(g, matrix, "input"))
    bounds = read_bounds(g, matrix, "output")
    value, gate = (clipped(g, each, bounds, in_place=True) for each in g.slices(h, matrix, x.n, x.n))
    weights = g.tensors.depthwise(f"{blk}conv_dw", x.n, *tap_shape(g, f"{blk}conv_dw.weight", taps.width))
    h = g.norm(convolve(g, g.gate(gate, value, "sigmoid"), *weights, taps), f"{blk}norm_conv")
    g.add(x, clipped_product(g, g.gate(h, None, "silu"), f"{blk}conv_pw2", x.n))


def tap_shape(g: SoundBuilder, name: str, width: int) -> tuple[int, ...]:
    """Return the shape of the weights of a column in a convolution over time, which may have an axis for its input."""
    found = g.f.tensors.get(name)
    return (1, width) if found and len(found.shape) == 3 else (width,)
