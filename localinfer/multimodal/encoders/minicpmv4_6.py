"""MiniCPM-V 4.6 (OpenBMB, 2026): SigLIP on an overview and slices of any aspect ratio. After one of its layers, squares
of 2 x 2 patches become one row each; after the last layer, squares of 2 x 2 of these rows."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, add_branch, attend, transform, two_layers
from localinfer.multimodal.encoders import resampler

ARCHITECTURES = ("qwen35",)
SIDE = 2  # rows on each side of a square
LAYERS = "wa_layer_indexes"
MERGER = "v.vit_merger."
arrange = resampler.arrange


def build(g: EncoderBuilder) -> Buffer:
    """Files whose projector divides the rows and columns by 2 only have no squares between the layers."""
    g.use_layer_norm()
    act, factor = activation(g), g.merge_size("projector.scale_factor", SIDE**2)
    if factor not in (SIDE, SIDE**2):
        raise g.hparams.error("projector.scale_factor", f"is {factor}; it must be {SIDE} or {SIDE**2}")
    x, grid = g.embed_patches(resampler.nearest_positions(g)), g.grid
    if factor == SIDE:
        g.hparams.accept(LAYERS)
        transform(g, x, act)
    else:
        n_first = merger_layer(g) + 1
        transform(g, x, act, n_layers=n_first)
        x, grid = merge_squares(g, x), (grid[0] // SIDE, grid[1] // SIDE)
        window = g.attention.add_windows(np.array([x.rows.capacity]))
        transform(g, x, act, AttentionSpec(window=window), first_layer=n_first)
    x = g.gather(g.norm(x, "v.post_ln"), row_order.blocks(grid, SIDE))
    return two_layers(g, g.norm(x, "mm.input_norm"), "mm.up", "mm.down", "gelu_erf")


def merger_layer(g: EncoderBuilder) -> int:
    """Return the layer after which squares become one row each. Raises LocalInferError unless there is such a layer."""
    found = g.f.get(g.hparams.full_name(LAYERS), np.ndarray)
    if len(found) != 1 or found.dtype.kind not in "iu" or not 0 <= found[0] < g.block_count:
        raise g.hparams.error(LAYERS, f"must be one number below {g.block_count}")
    return int(found[0])


def merge_squares(g: EncoderBuilder, x: Buffer) -> Buffer:
    """Return a row for each square, after attention of its patches to each other: their mean, and what two layers make
    of their values one after the other."""
    squares = row_order.blocks(g.grid, SIDE)
    x = g.gather(x, squares.reshape(-1))
    window = g.attention.add_windows(np.full(len(squares), SIDE**2))
    attended = attend(g, g.norm(x, f"{MERGER}ln1"), MERGER, AttentionSpec(window=window))
    add_branch(g, x, attended, f"{MERGER}attn_out")
    numbers = row_order.consecutive(squares.shape)
    means, values = g.average(x, numbers), g.norm(g.gather(x, numbers), f"{MERGER}ds_ln")
    g.add(means, two_layers(g, values, f"{MERGER}ds_ffn_up", f"{MERGER}ds_ffn_down", "gelu", n_out=means.n))
    return means
