"""Sums of residual streams, of models that have several."""

import numpy as np

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.properties.tensors import constant_tensor
from localinfer.kernels.signatures import COLLAPSE


def average_streams(graph: ComputeGraph, x: Buffer, count: int) -> Buffer:
    """Return the mean of `count` residual streams x."""
    return collapse_streams(graph, x, constant_tensor("equal_weights", np.full(count, 1 / count, np.float32)), 0, count)


def collapse_streams(graph: ComputeGraph, x: Buffer, weights: Buffer | Tensor, n_weights: int, count: int) -> Buffer:
    """Return the weighted sum of `count` residual streams x. A token's weights are the first `count` of its `n_weights`
    numbers; if `n_weights` is 0, all tokens have the same ones."""
    y = graph.buffer(x.n // count, x.rows)
    graph.op(
        "collapse", COLLAPSE, x.rows, chunks=(0, 8), x=x, weights=weights, n_weights=n_weights, count=count, n=y.n, y=y
    )
    return y
