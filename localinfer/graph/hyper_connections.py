"""Hyper-connections, composed of a builder's operations: what a branch reads of several residual streams, and what it
adds to them (`localinfer.graph.properties.hyper_connections`)."""

from localinfer.graph.builder import Block, Builder, X
from localinfer.graph.decoder import Branch
from localinfer.graph.properties.hyper_connections import HyperConnections


def apply_layers(g: Builder[X], shape: HyperConnections, attend: Branch[X], feed_forward: Branch[X]) -> X:
    """Return the residual streams after all layers."""
    x = g.cross_layer.streams(g.embeddings.tokens(), shape.count)
    for blk in g.blocks():
        apply_layer(g, shape, attend, feed_forward, blk, x)
    return x


def apply_layer(
    g: Builder[X], shape: HyperConnections, attend: Branch[X], feed_forward: Branch[X], blk: Block, x: X
) -> None:
    """Apply one layer to the residual streams x: two branches, each after a norm."""
    for name, branch in (("attn", attend), ("ffn", feed_forward)):
        h, weights = read_streams(g, x, f"{blk}hc_{name}", shape)
        y, matrix = branch(blk, g.norm(h, f"{blk}{name}_norm"))
        y = g.matmul(y, f"{blk}{matrix}", g.embedding_length) if matrix else y
        g.point(y, f"{blk}{name}_out")
        g.cross_layer.mix(x, y, weights, shape.count)


def read_gated_streams(g: Builder[X], x: X, name: str, count: int, rank: int) -> tuple[X, X]:
    """Return the input of a branch, the mean of `count` normalized residual streams x after gates of a low rank, and
    the normalized streams. The tensors are `name`_norm, `name`_down and `name`_up."""
    normed = g.norm_groups(x, g.embedding_length, f"{name}_norm.weight", per_group_weight=True)
    narrow = g.matmul(normed, f"{name}_down", rank)
    g.scale(narrow, 1 / count)
    gates = g.matmul(g.gate(narrow, None, "silu"), f"{name}_up", count * g.embedding_length)
    return g.cross_layer.collapse(g.gate(gates, normed, "sigmoid"), None, count), normed


def add_gated(g: Builder[X], x: X, y: X, normed: X, name: str, count: int) -> None:
    """Add the output y of a branch to each residual stream of x, times a weight from 0 to 2, which follows from the
    normalized streams before the branch. The tensor is `name`_inject."""
    weights, added = g.matmul(normed, f"{name}_inject", count), g.per_head.repeat(y, count)
    g.scale(weights, 1 / count)
    g.per_head.gate(added, weights, count, "sigmoid")
    g.add(x, added, 2.0)


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
