"""The Q-Former of BLIP-2 (Li et al., 2023) for sounds: learned queries attend to each other, and to the rows of a
window."""

from collections.abc import Iterator

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionHeads
from localinfer.multimodal.encoder_graph.transformer import two_layers
from localinfer.multimodal.encoder_graph.zero_rows import with_zero_rows
from localinfer.multimodal.sounds.sound_builder import ACTIVATION, SoundBuilder
from localinfer.multimodal.sounds.span_attention import SpanAttention, windows_of_rows

EPSILON = 1e-12
QUERIES, NORM = "a.proj_query", "a.proj_norm"
MAX_LAYERS, MAX_WINDOW = 64, 1 << 10


def query_windows(g: SoundBuilder, x: Buffer) -> Buffer:
    """Return the rows of all queries for each window of x; zeros follow x in the last window."""
    keys = "window_size", "downsample_rate", "head_count"
    size, rate, n_heads = (g.hparams.count(f"projector.{key}", maximum=MAX_WINDOW) for key in keys)
    if size % rate:
        raise g.hparams.error("projector.downsample_rate", f"is {rate}; it must divide {size}")
    n_queries, n_windows = size // rate, -(-x.rows.capacity // size)
    y = initial_queries(g, n_windows, n_queries)
    if y.n % n_heads:
        raise g.hparams.error("projector.head_count", f"is {n_heads}; it must divide {y.n}")
    heads = AttentionHeads(n_heads, n_heads, y.n // n_heads, y.n // n_heads)
    itself = SpanAttention.make(g, heads, windows_of_rows(n_windows, n_queries, n_queries))
    window = SpanAttention.make(g, heads, windows_of_rows(n_windows, n_queries, size))
    x = with_zero_rows(g, x, n_windows * size - x.rows.capacity)
    for blk in layers(g):
        y = attend(g, y, y, f"{blk}self_attn", itself)
        y = attend(g, y, x, f"{blk}cross_attn", window)
        g.add(y, two_layers(g, y, f"{blk}ffn_up", f"{blk}ffn_down", ACTIVATION, n_out=y.n))
        y = g.default_layer_norm(y, f"{blk}ffn_norm", EPSILON)
    return y


def initial_queries(g: SoundBuilder, n_windows: int, n_queries: int) -> Buffer:
    """Return the normalized queries for each window."""
    tensor = g.f.tensors.get(QUERIES)
    n = tensor.shape[-1] if tensor else 0
    queries = g.tensors.values(QUERIES, 1, n_queries, n)[0]
    constant = g.graph.buffer(n, g.rows(n_windows * n_queries))
    g.constants.set_rows(constant, 0, np.tile(queries, (n_windows, 1)))
    return g.default_layer_norm(constant, NORM, EPSILON)


def layers(g: SoundBuilder) -> Iterator[str]:
    """Iterate over the prefixes of the names of the layers that the file has."""
    for number in range(MAX_LAYERS):
        blk = f"a.proj_blk.{number}."
        if not g.tensors.has(f"{blk}self_attn_q.weight"):
            return
        yield blk


def attend(g: SoundBuilder, y: Buffer, x: Buffer, name: str, attention: SpanAttention) -> Buffer:
    """Return the norm of y and its attention to x."""
    q, k, v = g.matmul(y, f"{name}_q", y.n), g.matmul(x, f"{name}_k", y.n), g.matmul(x, f"{name}_v", y.n)
    h = g.matmul(attention.attend(name, (q, k, v)), f"{name}_out", y.n)
    g.add(h, y)
    return g.default_layer_norm(h, f"{name}_norm", EPSILON)
