"""Records the lookup of embeddings."""

import math

import numpy as np

from localinfer.gguf.reader import Tensor
from localinfer.graph.builder import Builder, EmbeddingOperations, Ngrams
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.ops.cost import Cost, CostModel
from localinfer.graph.properties.adapters import EMBEDDINGS
from localinfer.graph.properties.hyperparameters import multiple_of_32
from localinfer.graph.properties.tensors import constant_integers
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.operations.low_rank import add_low_rank
from localinfer.kernels.signatures import GET_ROWS, HASH_NGRAMS
from quant import FORMATS

MAX_TOKEN_TYPES = 1024
TABLE = "per_layer_token_embd.weight"


class EmbeddingRecorder(EmbeddingOperations[Buffer]):
    """Records rows of embedding matrices."""

    def __init__(self, g: Builder[Buffer], model: ModelGraph) -> None:
        self._g, self._model, self._graph = g, model, model.graph

    def tokens(self, factor: float = 1.0) -> Buffer:
        self._model.residual = x = look_up_tokens(self._model, "token_embd", factor)
        if self._model.media_input:
            self._model.media_input.replace(x)
        self._g.point(x, "enc.token_embd" if self._model.is_encoding else "token_embd")
        return x

    def add_deepstack(self, x: Buffer, layer: int) -> None:
        if self._model.media_input:
            self._model.media_input.add(x, layer)

    def add_positions(self, x: Buffer) -> None:
        model, count = self._model, self._model.hparams.count("context_length")
        if model.context.n_ctx > count or model.context.context_shift:
            raise model.hparams.unsupported("context_length", f"a context of more than its {count} learned positions")
        with self._graph.reuse_buffers():
            self._g.add(x, record_row_lookup(model, "position_embd.weight", (count, x.n), model.attention.positions))

    def add_token_types(self, x: Buffer) -> None:
        model, key = self._model, "tokenizer.ggml.token_type_count"
        count = model.f.get(key, int)
        if not 1 <= count <= MAX_TOKEN_TYPES:
            raise model.f.error(key, f"is {count}; it must be 1 to {MAX_TOKEN_TYPES}")
        model.type_count = count
        with self._graph.reuse_buffers():
            self._g.add(x, record_row_lookup(model, "token_types.weight", (count, x.n), model.token_types))

    def per_layer(self, x: Buffer, size: int) -> Buffer:
        model = self._model
        model.has_cross_layer_inputs = True
        n = multiple_of_32(model.hparams, "embedding_length_per_layer_input") * model.block_count
        y = record_row_lookup(model, TABLE, (model.n_vocab, n), model.ids, math.sqrt(size / 2))
        with self._graph.reuse_buffers():
            # The factor n_embd^-1/2 only affects the epsilon.
            projected = self._g.matmul(x, "per_layer_model_proj", n)
            self._g.norm_groups(projected, size, "per_layer_proj_norm.weight", eps=self._g.eps * x.n, out=projected)
            self._g.add(y, projected, math.sqrt(1 / 2))
        return y

    def ngrams(self, ngrams: Ngrams) -> Buffer:
        model, graph, table = self._model, self._graph, self._model.tensors.rows_from(TABLE, ngrams.n_rows)
        model.media_token = ngrams.media
        rows, tail = graph.region(4 * graph.batch * ngrams.per_token), model.states.add_layer(4 * (ngrams.longest - 1))
        graph.op(
            "hash_ngrams", HASH_NGRAMS, graph.tokens, chunks=(0, 0), ids=model.ids,
            multipliers=constant_integers("multipliers", ngrams.multipliers),
            sizes=constant_integers("sizes", ngrams.sizes), offsets=constant_integers("offsets", ngrams.offsets),
            longest=ngrams.longest, heads=ngrams.heads, end=ngrams.end, segments=model.states.segments, tail=tail,
            y=rows,
        )  # fmt: skip
        return look_up_rows(graph, table, rows, per_token=ngrams.per_token)


def look_up_tokens(model: ModelGraph, name: str, factor: float = 1.0) -> Buffer:
    """Return a row of an embedding matrix for each token, times a factor."""
    return record_row_lookup(model, f"{name}.weight", (model.n_vocab, model.embedding_length), model.ids, factor)


def record_row_lookup(
    model: ModelGraph, name: str, shape: tuple[int, int], row_ids: Region, factor: float = 1.0
) -> Buffer:
    """Record the lookup of a row of a tensor for each token, times a factor: the rows `row_ids`. Return the buffer of
    the result."""
    x = look_up_rows(model.graph, model.tensors.tensor(name, *shape), row_ids, factor)
    change = model.low_rank(name) if name == EMBEDDINGS else None
    if change is not None:
        with model.graph.reuse_buffers():
            add_low_rank(model, look_up_rows(model.graph, change.a, row_ids, factor), x, change)
    return x


def look_up_rows(
    graph: ComputeGraph, weight: Tensor, row_ids: Region, factor: float = 1.0, rows: Rows | None = None,
    per_token: int = 1,
) -> Buffer:  # fmt: skip
    """Record the lookup of rows of a matrix, times a factor: `per_token` for each of `rows` (default: all tokens)."""
    n_rows, n = weight.shape
    fmt, x, row_bytes = FORMATS[weight.type], graph.buffer(per_token * n, rows), weight.nbytes // n_rows
    graph.op(
        weight.name.removesuffix(".weight"),
        GET_ROWS.with_kernels(fmt.get_rows_kernel, fmt.get_rows_kernel),
        x.rows,
        constants={"format_module": fmt.format_module},
        cost=CostModel(token=Cost(per_token * row_bytes)),
        ids=row_ids,
        per_token=per_token,
        w=weight,
        row_bytes=row_bytes,
        n=n,
        y=x,
        factor=float(np.float32(factor)),
    )
    return x
