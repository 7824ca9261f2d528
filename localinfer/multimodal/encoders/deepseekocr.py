"""DeepSeek-OCR (DeepSeek, 2025): Segment Anything, whose rows enter CLIP in place of patches; the rows of both side by
side, and a matrix. Rows of the image end with an embedding of their own."""

from collections.abc import Sequence
from math import isqrt

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import learned_positions, row_order, segment_anything
from localinfer.multimodal.encoder_graph.bounds import CLASS
from localinfer.multimodal.encoder_graph.encoder_builder import PATCH_EMBEDDING, EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.encoder_graph.matrices import n_rows_of
from localinfer.multimodal.encoder_graph.transformer import transform
from localinfer.multimodal.encoders.arrangement import Part, View
from localinfer.multimodal.media import digest_of
from localinfer.runtime.media.media_embeddings import MediaEmbeddings

ARCHITECTURES = ("deepseek2-ocr",)
CLASS_ROWS = True
CLIP_EPSILON = 1e-5
n_rows = segment_anything.n_rows
NEWLINE, SEPARATOR = "v.image_newline", "v.view_seperator"


def build(g: EncoderBuilder) -> Buffer:
    """Segment Anything and CLIP; behind the projected rows of a view those of the end of a row and of the image."""
    g.use_layer_norm()
    g.tensors.accept(PATCH_EMBEDDING)  # CLIP's own
    g.hparams.accept("projector.scale_factor", "patch_size")  # of CLIP
    seen = segment_anything.encode(g)
    g.model.eps = CLIP_EPSILON
    n, count = seen.n, seen.rows.capacity
    both = g.graph.buffer(n + g.embedding_length, seen.rows)
    g.copy_columns(understand(g, seen), both, 0)
    g.copy_columns(seen, both, g.embedding_length)
    name, n_out = "mm.model.fc", n_rows_of(g, "mm.model.fc")
    output = g.graph.buffer(n_out, g.rows(count + 2))
    g.product(both, g.tensors.tensor(f"{name}.weight", n_out, both.n), bias=g.tensors.bias(name, n_out), out=output)
    for number, ending in enumerate((NEWLINE, SEPARATOR)):
        g.constants.set_rows(output, count + number, g.tensors.single(ending, n_out))
    return output


def understand(g: EncoderBuilder, seen: Buffer) -> Buffer:
    """Return the rows that CLIP makes of others, without its class row."""
    n, count = g.embedding_length, seen.rows.capacity
    table = g.tensors.values(learned_positions.POSITIONS, position_count(g), n)
    side = isqrt(len(table) - 1)
    if side**2 != len(table) - 1:
        raise g.f.error(f"tensor {learned_positions.POSITIONS}", f"has {len(table)} rows, not one and a square")
    rows, columns = (-(-length // 4) for length in g.grid)
    initial = np.empty((count + 1, n), np.float32)
    initial[0] = table[0] + g.tensors.values(CLASS, n)
    initial[1:] = g.resample(table[1:].reshape(side, side, n), "cubic", (rows, columns), antialias=True)
    x = g.graph.buffer(n, g.rows(count + 1))  # its last row begins as zeros
    g.gather(seen, row_order.consecutive((count,)), out=x)
    x = g.gather(x, np.roll(row_order.consecutive((count + 1,)), 1))
    g.add_constant(x, initial)
    x = g.norm(x, "v.pre_ln")
    window = g.attention.add_windows(np.array([count + 1]))
    transform(g, x, "gelu_quick", AttentionSpec(), windows=[window] * g.block_count)
    return g.gather(x, row_order.consecutive((count,)) + 1, out=g.graph.buffer(n, seen.rows))


def position_count(g: EncoderBuilder) -> int:
    """Return the number of learned positions."""
    found = g.f.tensors.get(learned_positions.POSITIONS)
    return found.shape[0] if found else 1


def arrange(views: Sequence[View]) -> list[Part]:
    """The rows of the image in tiles, then the whole image, and a line break, which prompts of the model have."""
    tiles = sorted((view for view in views if not view.is_overview), key=lambda view: view.tile)
    whole = next(view.rows.rows for view in views if view.is_overview)
    width = sum(view.tile[0] == 1 for view in tiles)
    lines = [tiles[first : first + width] for first in range(0, len(tiles), max(width, 1))]
    parts = [woven([view.rows.rows for view in line]) for line in lines]
    rows = np.concatenate([*parts, woven([whole]), whole[-1:]])
    return [MediaEmbeddings(digest_of(rows), rows, len(rows)), "\n"]


def woven(tiles: Sequence[Floats]) -> Floats:
    """Return the rows of tiles that are side by side: line after line, each with the embedding of its end."""
    side, n = isqrt(len(tiles[0]) - 2), tiles[0].shape[1]
    newline = np.broadcast_to(tiles[0][-2], (side, 1, n))
    lines = np.concatenate([*(rows[:-2].reshape(side, side, n) for rows in tiles), newline], 1)
    return lines.reshape(lines.shape[0] * lines.shape[1], n)
