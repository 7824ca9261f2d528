"""Features of n-grams (per-layer embeddings, PLE; Alibaba, 2026), composed of a builder's operations: the last tokens
choose rows of a table, from which a layer computes what it adds to the residual streams."""

from typing import NamedTuple

import numpy as np

from localinfer.graph.builder import Block, Builder, Ngrams, X
from localinfer.graph.properties.ngrams import PREFIX, read_ngrams

LAYERS = f"{PREFIX}.layers"


class NgramLayer(NamedTuple):
    """The layer `number` has features of n-grams, with a convolution over `width` tokens."""

    number: int
    ngrams: Ngrams
    width: int


def read_ngram_layer(g: Builder[X]) -> NgramLayer | None:
    """Return the layer with features of n-grams, if there is one. Raises UnsupportedError for several ones, as there is
    one table."""
    if not g.hparams.has(LAYERS):
        return None
    layers = g.f.get(g.hparams.full_name(LAYERS), np.ndarray)
    if len(layers) != 1 or layers.dtype.kind not in "iu":
        raise g.hparams.unsupported(LAYERS, "another array than that of the number of one layer")
    if not 0 <= layers[0] < g.block_count:
        raise g.hparams.error(LAYERS, f"has layer {layers[0]}; there are {g.block_count}")
    g.hparams.accept("embedding_length_per_layer_input")  # the shape of the table implies it
    width = g.hparams.count(f"{PREFIX}.conv_kernel", maximum=64)
    return NgramLayer(int(layers[0]), read_ngrams(g.hparams, g.tensors.n_vocab), width)


def add_ngram_features(g: Builder[X], x: X, blk: Block, layer: NgramLayer, count: int) -> None:
    """Add to each of `count` residual streams x the value of a token's n-grams, times a gate that compares their key
    with the stream, and a convolution of these products over the last tokens, which are as far apart as the longest
    n-gram has tokens."""
    n, rows = g.embedding_length, g.embeddings.ngrams(layer.ngrams)

    def normed(each: X, name: str) -> X:
        return g.norm_groups(each, n, f"{blk}ple_norm_{name}.weight", per_group_weight=True)

    keys, values = g.matmuls(rows, (f"{blk}ple_key", count * n), (f"{blk}ple_value", n))
    scores = g.per_head.dot(normed(keys, "key"), normed(x, "query"), count)
    g.scale(scores, n**-0.5)
    added = g.per_head.repeat(values, count)
    g.per_head.gate(added, scores, count, "sigmoid_of_root")
    y = g.recurrent.convolve(
        normed(added, "conv"), f"{blk}ple_conv1d", layer.width, "silu", dilation=layer.ngrams.longest
    )
    g.add(x, added)
    g.add(x, y)
