"""DeepSeek-OCR 2 (DeepSeek, 2026): Segment Anything, and the layers of a language model on its rows and on learned
queries. Rows of the image attend to each other, each query to them and to the queries before it. The output are the
rows of the queries."""

from collections.abc import Sequence

import numpy as np

from localinfer.gguf.reader import GGUF
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import positions, segment_anything
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.encoder_graph.matrices import n_rows_of
from localinfer.multimodal.encoder_graph.row_order import consecutive
from localinfer.multimodal.encoder_graph.transformer import transform
from localinfer.multimodal.encoders.arrangement import Part, View
from localinfer.multimodal.media import digest_of
from localinfer.runtime.media.media_embeddings import MediaEmbeddings

ARCHITECTURES = ("deepseek2-ocr",)
SMALL, LARGE = "v.resample_query_768.weight", "v.resample_query_1024.weight"  # queries of tiles, and of whole images
MAX_QUERIES = 1 << 12
BASE, EPSILON = 1_000_000.0, 1e-6
SEPARATOR = "v.view_seperator"


def n_rows(f: GGUF, grid: tuple[int, int], n: int) -> int:
    """Return the number of rows of all windows, or of those of Segment Anything with the queries, if there are more."""
    count = n_seen(grid)
    return max(segment_anything.n_rows(f, grid, n), count + n_queries(f, queries_of(f, count)))


def n_seen(grid: tuple[int, int]) -> int:
    """Return the number of rows that Segment Anything makes of an image with this grid of patches."""
    return -(-grid[0] // 4) * -(-grid[1] // 4)


def n_queries(f: GGUF, name: str) -> int:
    """Return the number of queries in a tensor. Raises LocalInferError if there are too many."""
    found = f.tensors.get(name)
    count = found.shape[0] if found else 1
    if count > MAX_QUERIES:
        raise f.error(f"tensor {name}", f"has {count} rows; at most {MAX_QUERIES} are possible")
    return count


def queries_of(f: GGUF, count: int) -> str:
    """Return the name of the queries of an image of which Segment Anything makes this number of rows."""
    return SMALL if count <= n_queries(f, SMALL) else LARGE


def build(g: EncoderBuilder) -> Buffer:
    """Segment Anything, the layers, and a matrix for the queries; behind their rows the one of the end of an image."""
    g.hparams.accept("projector.scale_factor", "patch_size", "image_size")
    g.tensors.accept(SMALL, LARGE)
    g.model.eps = EPSILON
    x, count = with_queries(g, segment_anything.encode(g))
    total = x.rows.capacity
    angles = np.zeros((g.graph.batch, g.heads.key // 2))
    angles[:total] = np.arange(total)[:, None] * positions.frequencies(g.heads.key, BASE)
    spec = AttentionSpec(g.attention.rotation("halves", angles))
    rows = np.arange(total, dtype=np.int32)
    window = g.attention.add_spans(np.zeros(total, np.int32), np.maximum(rows, count - 1))
    transform(g, x, "silu", spec, windows=[window] * g.block_count)
    found = g.gather(g.norm(x, "v.post_ln"), rows[count:])
    name, n_out = "mm.model.fc", n_rows_of(g, "mm.model.fc")
    output = g.graph.buffer(n_out, g.rows(total - count + 1))
    g.product(found, g.tensors.tensor(f"{name}.weight", n_out, x.n), bias=g.tensors.bias(name, n_out), out=output)
    g.constants.set_rows(output, total - count, g.tensors.single(SEPARATOR, n_out))
    return output


def with_queries(g: EncoderBuilder, seen: Buffer) -> tuple[Buffer, int]:
    """Return the residual stream: rows of the image, of which there are as many as the number, and queries."""
    n, count = g.embedding_length, seen.rows.capacity
    name = queries_of(g.f, count)
    queries: Floats = g.tensors.values(name, n_queries(g.f, name), n)
    total = g.rows(count + len(queries))
    entered = g.gather(seen, consecutive((count,)), out=g.graph.buffer(n, total))
    for number, row in enumerate(queries, count):
        g.constants.set_rows(entered, number, row)
    return g.gather(entered, consecutive((total.capacity,)), out=g.graph.buffer(n, total)), count


def arrange(views: Sequence[View]) -> list[Part]:
    """The rows of the tiles, those of the whole image with its end, and a line break, which prompts of the model
    have."""
    ordered = sorted(views, key=lambda view: (view.is_overview, view.tile))
    rows = np.concatenate([view.rows.rows if view.is_overview else view.rows.rows[:-1] for view in ordered])
    return [MediaEmbeddings(digest_of(rows), rows, len(rows)), "\n"]
