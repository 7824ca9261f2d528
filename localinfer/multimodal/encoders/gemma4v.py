"""Gemma 4 (Google, 2026): images of any size, learned and rotary positions in two dimensions, average pooling, one
matrix."""

import math

import numpy as np

from localinfer.gguf.reader import GGUF
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.kernels.signatures import ADD_BIAS
from localinfer.multimodal.encoder_graph import positions, row_order
from localinfer.multimodal.encoder_graph.clipped_products import clipped_network, clipped_product
from localinfer.multimodal.encoder_graph.encoder_builder import CHANNELS, PATCH_EMBEDDING, EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats, constant
from localinfer.multimodal.encoder_graph.learned_positions import POSITIONS
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("gemma4",)
ANY_SIZE = True
BASE = 100.0  # of the rotation frequencies
arrange = surround("<|image>", "<image|>")


def is_bidirectional(model: GGUF) -> bool:
    """Return whether the rows of an image attend to each other: not in the small models, which have an input embedding
    for each layer."""
    return not model.get("gemma4.embedding_length_per_layer_input", int, 0)


def build(g: EncoderBuilder) -> Buffer:
    """A transformer with norms before and after attention and network, and the means of squares of patches."""
    size = g.merge_size("projector.scale_factor", 3)
    if g.heads.key % 4:
        raise g.hparams.error("attention.head_count", f"makes heads of {g.heads.key} values; they must be 4 n")
    x = g.embed_patches((position_rows(g) - row_sums(g)) * np.float32(0.5), point="")
    g.scale(x, 2.0)  # pixels from 0 to 1 become those from -1 to 1
    g.point(x, "v.patch_embd")
    vertical, horizontal = positions.grid_positions(g.grid)
    each = positions.frequencies(g.heads.key // 2, BASE)
    angles = np.concatenate([horizontal[:, None] * each, vertical[:, None] * each], 1)
    spec = AttentionSpec(g.attention.rotation("quarters", angles), scale=1.0)
    for blk in g.layers(x):
        attended = attend(g, g.norm(x, f"{blk}ln1"), blk, spec)
        g.add_norm(x, clipped_product(g, attended, f"{blk}attn_out", x.n), f"{blk}attn_post_norm")
        g.point(x, f"{blk}resid_mid")
        h, names = g.norm(x, f"{blk}ln2"), (f"{blk}ffn_up", f"{blk}ffn_gate")
        g.add_norm(x, clipped_network(g, h, names, f"{blk}ffn_down", "gelu", x.n), f"{blk}ffn_post_norm")
    x = g.average(x, row_order.blocks(g.grid, size))
    g.scale(x, math.sqrt(x.n))
    standardize(g, x)
    return g.matmul(g.norm_groups(x, x.n), "mm.input_projection", g.output_length)


def attend(g: EncoderBuilder, h: Buffer, blk: str, spec: AttentionSpec) -> Buffer:
    """Return the input of attn_out. The heads of values have norms without weights."""
    heads = g.heads
    q = clipped_product(g, h, f"{blk}attn_q", heads.count * heads.key)
    k = clipped_product(g, h, f"{blk}attn_k", heads.count_kv * heads.key)
    v = clipped_product(g, h, f"{blk}attn_v", heads.count_kv * heads.value)
    return g.attention.attend(blk, q, k, g.norm_groups(v, heads.value), spec)


def position_rows(g: EncoderBuilder) -> Floats:
    """Return the position embedding of each patch: the sum of that of its column, which is in the first table, and that
    of its row. Raises LocalInferError if a table has too few rows."""
    found, (rows, columns), n = g.f.tensors.get(POSITIONS), g.grid, g.embedding_length
    count = found.shape[1] if found and len(found.shape) == 3 else max(g.grid)
    if count < max(g.grid):
        raise g.f.error(f"tensor {POSITIONS}", f"has {count} positions; an image has {rows} x {columns} patches")
    of_column, of_row = g.tensors.values(POSITIONS, 2, count, n)
    sums: Floats = of_row[:rows, None] + of_column[None, :columns]
    return sums.reshape(-1, n)


def row_sums(g: EncoderBuilder) -> Floats:
    """Return the product of the patch embedding and a patch of ones."""
    shape = g.embedding_length, CHANNELS, g.patch_size, g.patch_size
    sums: Floats = g.tensors.values(PATCH_EMBEDDING, *shape).sum((1, 2, 3), np.float32)
    return sums


def standardize(g: EncoderBuilder, x: Buffer) -> None:
    """Subtract the mean of each column, and multiply by its scale, if the file has them."""
    bias, scale = "v.std_bias", "v.std_scale"
    if g.tensors.has(bias):
        negative = constant(bias, -g.tensors.values(bias, x.n))
        g.graph.op(bias, ADD_BIAS, x.rows, bias=negative, n=x.n, x=x)
        g.scale_columns(x, scale)
