"""MiniCPM-V 2.6, 4.0 and 4.5 (Yao et al., 2024): SigLIP on an overview and slices of any aspect ratio, and learned
queries that attend to their patches."""

from collections.abc import Sequence

import numpy as np

from localinfer.gguf.reader import GGUF
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionHeads, AttentionSpec
from localinfer.graph.recording.attention import LayerAttention
from localinfer.multimodal.encoder_graph import learned_positions, positions
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.encoder_graph.matrices import n_rows_of
from localinfer.multimodal.encoder_graph.transformer import activation, transform
from localinfer.multimodal.encoders.arrangement import Part, View

ARCHITECTURES = ("llama", "minicpm", "qwen2", "qwen3")
HAS_PROJECTION_DIM = False  # it is 0 in files
QUERIES = "resampler.query"
HEAD_SIZE = 128
VERSIONS = (3, 4, 5, 6, 100045)  # MiniCPM-V and -o 2.6, 4.0 and 4.5


def n_rows(f: GGUF, grid: tuple[int, int], n: int) -> int:  # noqa: ARG001 (one signature for all)
    """Return the number of patches, or that of queries, if there are more of them."""
    return max(n, n_queries_of(f))


def n_queries_of(f: GGUF) -> int:
    """Return the number of learned queries."""
    tensor = f.tensors.get(QUERIES)
    return tensor.shape[0] if tensor else 0


def build(g: EncoderBuilder) -> Buffer:
    """SigLIP whose positions are the nearest ones of a square grid; attention of the queries to all patches, whose keys
    have sinusoidal positions; a matrix. An image with fewer patches than queries has further rows, which are hidden."""
    g.use_layer_norm()
    version = g.f.get("clip.minicpmv_version", int, 0)
    if version not in VERSIONS:
        raise g.hparams.error("projector_type", f"MiniCPM-V of version {version} is not supported")
    spec, n_more = AttentionSpec(), g.graph.batch - g.n_patches
    if n_more:
        spec, n = AttentionSpec(window=g.n_patches), g.graph.batch
        g.attention.spans[spec.window] = np.zeros(n, np.int32), np.full(n, g.n_patches - 1, np.int32)
    x = g.embed_patches(np.pad(nearest_positions(g), ((0, n_more), (0, 0))))
    transform(g, x, activation(g), spec)
    return resample(g, g.norm(x, "v.post_ln"), spec)


def nearest_positions(g: EncoderBuilder) -> Floats:
    """Return the position embeddings of the patches: those of the cells of a square grid in which they begin."""
    table = learned_positions.of_square_grid(g)
    rows, columns = (np.arange(n) * len(table) // n for n in g.grid)
    return table[rows[:, None], columns].reshape(g.n_patches, -1)


def resample(g: EncoderBuilder, x: Buffer, spec: AttentionSpec) -> Buffer:
    """Return a row for each query: what it attends to, a norm and a matrix."""
    n, n_queries = n_rows_of(g, "resampler.kv"), n_queries_of(g.f)
    heads = AttentionHeads(n // HEAD_SIZE, n // HEAD_SIZE, HEAD_SIZE, HEAD_SIZE)
    g.tensors.accept("resampler.pos_embed_k", "resampler.pos_embed")  # the positions of a grid of 70 x 70 patches
    values = g.norm(g.matmul(x, "resampler.kv", n), "resampler.ln_kv")
    keys = g.constants.rows(np.pad(sinusoidal_positions(g, n), ((0, g.graph.batch - g.n_patches), (0, 0))))
    g.add(keys, values)
    q = g.constants.rows(g.tensors.values(QUERIES, n_queries, n), g.rows(n_queries))
    q_all = g.graph.buffer(n)  # only its first rows are queries
    weight, bias = g.tensors.tensor("resampler.attn.q.weight", n, n), g.tensors.bias("resampler.attn.q", n)
    g.product(g.norm(q, "resampler.ln_q"), weight, bias=bias, out=q_all)
    k = g.matmul(keys, "resampler.attn.k", n)
    v = g.matmul(values, "resampler.attn.v", n)
    attended = g.model.attention.attend(LayerAttention("resampler.", heads, spec), q_all, k, v)
    attended = g.gather(attended, np.arange(n_queries, dtype=np.int32))
    g.point(attended, "resampler.attn_heads")
    x = g.norm(g.matmul(attended, "resampler.attn.out", n), "resampler.ln_post")
    return g.matmul(x, "resampler.proj", n_rows_of(g, "resampler.proj"))


def sinusoidal_positions(g: EncoderBuilder, n: int) -> Floats:
    """Return the sines and the cosines of the columns of the patches, then those of their rows, (patches, n)."""
    each = positions.frequencies(n // 2)
    rows, columns = positions.grid_positions(g.grid)
    angles = [at[:, None] * each for at in (columns, rows)]
    return np.concatenate([part for angle in angles for part in (np.sin(angle), np.cos(angle))], 1).astype(np.float32)


def arrange(views: Sequence[View]) -> list[Part]:
    """The whole image, then the slices row by row. The number of the image, which the model knows, too, is left out."""
    parts: list[Part] = []
    ordered = sorted(views, key=lambda view: not view.is_overview)
    for number, view in enumerate(ordered):
        name = "image" if view.is_overview else "slice"
        if number > 1 and view.tile[0] != ordered[number - 1].tile[0]:
            parts.append("\n")
        parts += [f"<{name}>", view.rows, f"</{name}>"]
    return parts
