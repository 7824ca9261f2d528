"""Hyper-connections, composed of a builder's operations: what a branch reads of several residual streams, and what it
adds to them (`localinfer.graph.properties.hyper_connections`)."""

from localinfer.graph.builder import Builder, X
from localinfer.graph.decoder import Branch
from localinfer.graph.properties.hyper_connections import HyperConnections


def apply_layers(g: Builder[X], shape: HyperConnections, attend: Branch[X], feed_forward: Branch[X]) -> X:
    """Return the residual streams after all layers."""
    x = g.cross_layer.streams(g.embeddings.tokens(), shape.count)
    for blk in g.blocks():
        for name, branch in (("attn", attend), ("ffn", feed_forward)):
            h, weights = read_streams(g, x, f"{blk}hc_{name}", shape)
            y, matrix = branch(blk, g.norm(h, f"{blk}{name}_norm"))
            y = g.matmul(y, f"{blk}{matrix}", g.embedding_length) if matrix else y
            g.point(y, f"{blk}{name}_out")
            g.cross_layer.mix(x, y, weights, shape.count)
    return x


def read_streams(g: Builder[X], x: X, name: str, shape: HyperConnections) -> tuple[X, X]:
    """Return the input of a branch, a weighted sum of the residual streams x, and the weights with which
    `g.cross_layer.mix` adds the output of the branch. The tensors are `name`_fn, `name`_scale and `name`_base."""
    weights = stream_weights(g, x, name, shape, shape.n_logits)
    return g.cross_layer.collapse(x, weights, shape.count), weights


def merge_streams(g: Builder[X], x: X, name: str, shape: HyperConnections) -> X:
    """Return a weighted sum of the residual streams, after the last layer."""
    return g.cross_layer.collapse(x, stream_weights(g, x, name, shape, shape.count), shape.count)


def mean_of_streams(g: Builder[X], x: X, shape: HyperConnections) -> X:
    """Return the mean of the residual streams, after the last layer."""
    mean, *others = g.per_head.split(x, 1, *[g.embedding_length] * shape.count)
    for each in others:
        g.add(mean, each)
    g.scale(mean, 1 / shape.count)
    return mean


def stream_weights(g: Builder[X], x: X, name: str, shape: HyperConnections, count: int) -> X:
    """Return `count` weights for each token, from the residual streams after an RMSNorm of them all."""
    weights = g.matmul(g.norm_groups(x, shape.count * g.embedding_length), f"{name}_fn", count)
    g.cross_layer.weigh_streams(weights, name, shape)
    return weights
