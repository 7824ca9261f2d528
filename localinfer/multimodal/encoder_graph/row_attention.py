"""Attention of the rows of an encoder: of all rows to each other, of those of a window, or of a span of each row."""

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionHeads, AttentionSpec
from localinfer.graph.properties.rope import Rope
from localinfer.graph.recording.attention import NO_NORMS, HeadNorms, LayerAttention
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.rope_tables import Angles, RopeTable
from localinfer.multimodal.encoder_graph.bounds import check_positions
from localinfer.multimodal.encoder_graph.constants import Constants
from localinfer.multimodal.encoder_graph.row_order import Indices


class RowAttention:
    """Records attention of rows. `spans` has the first and the last row that each row attends to, by the `window` of
    the `AttentionSpec`, which only names them. Window 0 is all rows."""

    def __init__(self, model: ModelGraph, heads: AttentionHeads, constants: Constants) -> None:
        self._model, self._heads, self._constants = model, heads, constants
        self.spans: dict[int, tuple[Indices, Indices]] = {}

    def rotation(self, pairs: str, angles: NDArray[np.float64]) -> Rope:
        """Return a rotary embedding with the angles of each row, (rows, pairs). Raises LocalInferError unless all rows
        have angles."""
        check_positions(self._model.f, len(angles), self._model.graph.batch)
        rope = Rope(pairs, np.zeros(angles.shape[1]))
        table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
        region = self._constants.region(table)
        self._model.attention.rope_tables[rope, False] = RopeTable(rope, Angles(rope), region, None)
        return rope

    def add_windows(self, lengths: NDArray[np.int64]) -> int:
        """Return the `window` of an `AttentionSpec` with which rows attend to those of their window: lengths of
        consecutive windows, which together are all rows of the queries."""
        starts = np.cumsum(lengths) - lengths
        oldest, end = (np.repeat(each, lengths).astype(np.int32) for each in (starts, starts + lengths))
        return self.add_spans(oldest, end - 1)

    def add_spans(self, oldest: Indices, newest: Indices) -> int:
        """Return the `window` of an `AttentionSpec` with which each row attends to those from its oldest to its newest.
        """
        window = int((newest - oldest).max()) + 1
        while window in self.spans:
            window += 1
        self.spans[window] = oldest, newest
        return window

    def attend(self, blk: str, q: Buffer, k: Buffer, v: Buffer, spec: AttentionSpec) -> Buffer:
        """Return the input of attn_out, given the queries, keys and values of all rows. Heads of queries and keys have
        norms if the file has them."""
        tensors, norms = self._model.tensors, NO_NORMS
        if tensors.has(f"{blk}attn_q_norm.weight"):
            names = [f"{blk}attn_{name}_norm.weight" for name in "qk"]
            norms = HeadNorms("before_rope", *(tensors.vector(name, self._heads.key) for name in names))
        return self.attend_layer(LayerAttention(blk, self._heads, spec, norms), q, k, v)

    def attend_layer(self, layer: LayerAttention, q: Buffer, k: Buffer, v: Buffer) -> Buffer:
        """Return what the queries get from the keys and values, with heads and norms of the `layer`. Raises
        LocalInferError unless there are as many rows of queries as have spans."""
        window = layer.spec.window
        n_rows = len(self.spans[window][0]) if window else self._model.graph.batch
        check_positions(self._model.f, n_rows, q.rows.capacity)
        y = self._model.attention.attend(layer, q, k, v)
        self._model.points.add(f"{layer.name}attn_heads", y)
        return y
