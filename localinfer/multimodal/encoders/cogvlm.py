"""CogVLM (Wang et al., 2023): EVA2-CLIP on images of one size, a gated network, and rows that begin and end an image.
CogVLM2 (Hong et al., 2024) merges squares of 2 x 2 patches by a convolution."""

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph import learned_positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.matrices import n_rows_of, product_of_padded
from localinfer.multimodal.encoder_graph.row_ends import with_ends
from localinfer.multimodal.encoder_graph.transformer import FULL_ATTENTION, attend, hidden_units
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("cogvlm",)
CLASS_ROWS = True
MERGER = "mm.patch_merger"
arrange = surround("", "")


def build(g: EncoderBuilder) -> Buffer:
    """A transformer whose norms are behind the branches; the rows of the patches, or of squares of them, in a matrix
    with LayerNorm and a gated network. Files have no flag for the activation, which is the exact GELU."""
    g.use_layer_norm()
    x = g.embed_patches(learned_positions.of_all_rows(g))
    for blk in g.layers(x):
        add_layer(g, x, blk)
    x = projected(g, x, n_rows_of(g, "mm.model.fc"))
    x = g.gate(g.default_layer_norm(x, "mm.post_fc_norm"), None, "gelu_erf")
    hidden = hidden_units(g, x, ["mm.up", "mm.gate"], "mm.down", "silu")
    x = product_of_padded(g, hidden, "mm.down", n_rows_of(g, "mm.up"), g.output_length)
    return with_ends(g, x, "v.boi", "v.eoi")


def add_layer(g: EncoderBuilder, x: Buffer, blk: str) -> None:
    """Add the normalized branches of a layer to x."""
    branch = g.matmul(attend(g, x, blk, FULL_ATTENTION), f"{blk}attn_out", x.n)
    g.add(x, g.norm(branch, f"{blk}ln1"))
    g.point(x, f"{blk}resid_mid")
    up, down = f"{blk}ffn_up", f"{blk}ffn_down"
    branch = product_of_padded(g, hidden_units(g, x, [up], down, "gelu_erf"), down, n_rows_of(g, up), x.n)
    g.add(x, g.norm(branch, f"{blk}ln2"))


def projected(g: EncoderBuilder, x: Buffer, n_out: int) -> Buffer:
    """Return the products of the rows of patches, or of merged ones, with the first matrix of the projector."""
    patches = g.patch_rows()
    if not g.tensors.has(f"{MERGER}.weight"):
        return g.matmul(g.gather(x, patches), "mm.model.fc", n_out)
    n, size = n_rows_of(g, MERGER), g.merge_size("spatial_merge_size")
    weight = g.tensors.columns_by_patch(f"{MERGER}.weight", n, x.n, size)
    squares = g.gather(x, patches[row_order.blocks(g.grid, size)])
    return g.matmul(g.product(squares, weight, bias=g.tensors.bias(MERGER, n)), "mm.model.fc", n_out)


def coordinates(grid: tuple[int, int], n_rows: int) -> NDArray[np.int32]:  # noqa: ARG001 (one signature for all)
    """Return the rotary positions of an image's rows, (n_rows, 3): all rows but the first and the last share one."""
    positions = np.ones(n_rows, np.int32)
    positions[0], positions[-1] = 0, 2
    return np.repeat(positions[:, None], 3, axis=1)
