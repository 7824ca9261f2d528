"""Hyper-connections, composed of a builder's operations: what a branch reads of several residual streams, and what it
adds to them (`localinfer.graph.properties.hyper_connections`)."""

from localinfer.graph.builder import Builder, X
from localinfer.graph.properties.hyper_connections import HyperConnections


def read_streams(g: Builder[X], x: X, name: str, shape: HyperConnections) -> tuple[X, X]:
    """Return the input of a branch, a weighted sum of the residual streams x, and the weights with which
    `g.cross_layer.mix` adds the output of the branch. The tensors are `name`_fn, `name`_scale and `name`_base."""
    weights = stream_weights(g, x, name, shape, shape.n_logits)
    return g.cross_layer.collapse(x, weights, shape.count), weights


def merge_streams(g: Builder[X], x: X, name: str, shape: HyperConnections) -> X:
    """Return a weighted sum of the residual streams, after the last layer."""
    return g.cross_layer.collapse(x, stream_weights(g, x, name, shape, shape.count), shape.count)


def stream_weights(g: Builder[X], x: X, name: str, shape: HyperConnections, count: int) -> X:
    """Return `count` weights for each token, from the residual streams after an RMSNorm of them all."""
    weights = g.matmul(g.norm_groups(x, shape.count * g.embedding_length), f"{name}_fn", count)
    g.cross_layer.weigh_streams(weights, name, shape)
    return weights
