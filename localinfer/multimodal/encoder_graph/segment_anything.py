"""The encoder of Segment Anything (Kirillov et al., 2023), ViT-B: windowed attention in most layers, and positions
relative to each other in the scores (Li et al., 2022, "MViTv2")."""

from dataclasses import dataclass

import numpy as np

from localinfer.gguf.reader import GGUF
from localinfer.graph.ops.buffers import Buffer, Rows
from localinfer.graph.properties.attention import AttentionHeads, AttentionSpec
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.recording.attention import LayerAttention
from localinfer.kernels.signatures import RELATIVE_POSITIONS
from localinfer.multimodal.encoder_graph import row_order
from localinfer.multimodal.encoder_graph.encoder_builder import CHANNELS, EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.encoder_graph.feature_maps import FeatureMap, FeatureMaps, centered_padding
from localinfer.multimodal.encoder_graph.matrices import n_rows_of
from localinfer.multimodal.encoder_graph.row_order import Indices
from localinfer.multimodal.encoder_graph.transformer import add_branch, hidden_units
from localinfer.multimodal.encoder_graph.zero_rows import with_zero_rows

PREFIX = "clip.vision"
PATCH, POSITIONS = "v.sam.patch_embd", "v.sam.pos_embd.weight"
PATCH_SIZE = 16
EPSILON = 1e-6
FULL_EVERY = 3  # layers: the last one of each three attends to all patches
MAX_WINDOW, MAX_HEAD_SIZE = 64, 1 << 10
DIMENSIONS = 32  # keys of the cache have a multiple of them


@dataclass(frozen=True, eq=False)
class Area:
    """The rows among which attention takes place: grids of one size, one after the other. `window` is the one of
    `RowAttention.add_windows`. `order` are the patches in these rows, the number behind the last one for rows beyond
    the image; None for all patches as they are."""

    grid: tuple[int, int]
    window: int
    rows: Rows
    order: Indices | None = None


def n_rows(f: GGUF, grid: tuple[int, int], n: int) -> int:
    """Return the number of rows of all windows, or `n`, if it is more."""
    size = Hyperparameters(f, PREFIX).count("window_size", maximum=MAX_WINDOW)
    height, width = (-(-length // size) * size for length in grid)
    return max(height * width, n)


def padded_windows(grid: tuple[int, int], size: int) -> Indices:
    """Return the patches of each window of size x size, (windows, size * size); beyond the grid the number behind the
    last patch."""
    rows, columns = grid
    numbers = np.full((-(-rows // size) * size, -(-columns // size) * size), rows * columns, np.int32)
    numbers[:rows, :columns] = row_order.consecutive(grid)
    return numbers.reshape(-1)[row_order.blocks((numbers.shape[0], numbers.shape[1]), size)]


def encode(g: EncoderBuilder) -> Buffer:
    """Return the rows of the encoder, and of the two convolutions behind it: one for each 4 x 4 patches."""
    n = g.hparams.count("sam.embedding_length")
    count = g.hparams.count("sam.head_count")
    if n % count or n // count % 16 or n // count > MAX_HEAD_SIZE:
        raise g.hparams.error("sam.head_count", f"is {count}; heads of {n} values must have a multiple of 16")
    x, heads = embed(g, n), AttentionHeads(count, count, n // count, n // count)
    full = Area(g.grid, g.attention.add_windows(np.array([g.n_patches])), x.rows)
    size = g.hparams.count("window_size", maximum=MAX_WINDOW)
    order = padded_windows(g.grid, size)
    window = g.attention.add_windows(np.full(len(order), size**2))
    local = Area((size, size), window, g.rows(order.size), order.reshape(-1))
    padded = g.rows(g.n_patches + 1)
    for number in range(g.hparams.count("sam.block_count", maximum=1 << 8)):
        with g.graph.reuse_buffers():
            area, blk = full if number % FULL_EVERY == FULL_EVERY - 1 else local, f"v.sam.blk.{number}."
            g.point(x, f"{blk}resid_pre")
            add_layer(g, x, blk, area, heads, padded)
            g.point(x, f"{blk}resid_post")
    return shrink(g, x)


def shrink(g: EncoderBuilder, x: Buffer) -> Buffer:
    """Return a row for each 4 x 4 patches: convolutions, two with norms, two of stride 2."""
    maps, neck = FeatureMaps(g, centered_padding), "v.sam.neck."
    x = g.default_layer_norm(maps.pointwise(x, f"{neck}0.weight"), f"{neck}1", EPSILON)
    x = maps.convolve(FeatureMap(x, g.grid), f"{neck}2.weight", 1).x
    seen = FeatureMap(g.default_layer_norm(x, f"{neck}3", EPSILON), g.grid)
    for number in (2, 3):
        seen = maps.convolve(seen, f"v.sam.net_{number}.weight", 2)
    return seen.x


def embed(g: EncoderBuilder, n: int) -> Buffer:
    """Return the residual stream, with learned positions that are interpolated to the grid."""
    weight = g.tensors.patch_matrix((f"{PATCH}.weight",), n, CHANNELS, PATCH_SIZE)
    found = g.f.tensors.get(POSITIONS)
    side = found.shape[-2] if found and len(found.shape) > 1 else 1
    table = g.tensors.single(POSITIONS, side, side, n)
    initial = g.resample(table, "cubic", antialias=True) + g.tensors.values(f"{PATCH}.bias", n)
    return g.enter_patches(weight, initial, g.rows(g.n_patches), PATCH)


def add_layer(g: EncoderBuilder, x: Buffer, blk: str, area: Area, heads: AttentionHeads, padded: Rows) -> None:
    """Apply a layer to the residual stream. `padded` are the rows of x and a row of zeros."""
    h = g.default_layer_norm(x, f"{blk}pre_ln", EPSILON)
    if area.order is not None:
        h = g.gather(with_zero_rows(g, h, rows=padded), area.order, out=g.graph.buffer(x.n, area.rows))
    attended = attend(g, h, blk, area, heads)
    if area.order is not None:
        places = row_order.inverse_of_first(area.order, g.n_patches)
        attended = g.gather(attended, places, out=g.graph.buffer(x.n, x.rows))
    add_branch(g, x, attended, f"{blk}attn.out")
    g.point(x, f"{blk}resid_mid")
    h, up = g.default_layer_norm(x, f"{blk}post_ln", EPSILON), f"{blk}mlp.lin1"
    hidden = hidden_units(g, h, [up], f"{blk}mlp.lin2", "gelu_erf")
    add_branch(g, x, hidden, f"{blk}mlp.lin2", n_in=n_rows_of(g, up))


def attend(g: EncoderBuilder, h: Buffer, blk: str, area: Area, heads: AttentionHeads) -> Buffer:
    """Return what the rows of an area get from each other."""
    n, (height, width) = heads.count * heads.key, area.grid
    dim = -(-(heads.key + height + width) // DIMENSIONS) * DIMENSIONS
    q, k, v = g.slices(h, f"{blk}attn.qkv", n, n, n)
    for name, x in zip("qkv", (q, k, v), strict=True):
        g.point(x, f"{blk}attn_{name}")
    q_out, k_out = (g.graph.buffer(heads.count * dim, h.rows) for _ in "qk")
    scale: float = heads.key**-0.5
    g.graph.op(
        f"{blk}relative_positions", RELATIVE_POSITIONS, h.rows, chunks=(1, 8), q=q, k=k, heads=heads.count,
        size=heads.key, height=height, width=width, dim=dim, factor=1 / scale,
        by_row=g.constants.region(distances(g, f"{blk}attn.pos_h.weight", height, heads.key)),
        by_column=g.constants.region(distances(g, f"{blk}attn.pos_w.weight", width, heads.key)),
        q_out=q_out, k_out=k_out,
    )  # fmt: skip
    longer = AttentionHeads(heads.count, heads.count, dim, heads.value)
    spec = AttentionSpec(window=area.window, scale=scale)
    return g.attention.attend_layer(LayerAttention(blk, longer, spec), q_out, k_out, v)


def distances(g: EncoderBuilder, name: str, length: int, size: int) -> Floats:
    """Return the embeddings of all distances in a row of this length, (2 * length - 1, size), interpolated from the
    file's."""
    found = g.f.tensors.get(name)
    table = g.tensors.values(name, found.shape[0] if found else 1, size)
    return g.resample(table[:, None], "linear", (2 * length - 1, 1))
