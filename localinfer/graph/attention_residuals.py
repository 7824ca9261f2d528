"""Attention residuals (Kimi Team, 2026), composed of a builder's operations.

Each block of layers has a residual stream of its own. A branch reads a weighted mean of this stream, of the final
streams of the blocks before, and of the embedding.
"""

from typing import Generic

from localinfer.graph.builder import Block, Builder, X


class ResidualBlocks(Generic[X]):
    """The residual stream of the current block of layers, and those of the blocks before. Create it before the first
    layer, with the embedding."""

    def __init__(self, g: Builder[X], x: X) -> None:
        self._g, self._x, self._size = g, x, g.hparams.count("attn_res.block_size")
        self._earlier = g.cross_layer.buffer(-(-g.block_count // self._size) * g.embedding_length)
        self._count = 0

    def read(self, name: str) -> X:
        """Return the mean of the streams, whose scores are products with the weights of `name`. Before the first layer,
        there is only one."""
        return self._g.cross_layer.attend(self._x, self._earlier, self._count, name)

    def add_attention(self, blk: Block, y: X) -> None:
        """Add the output of attention, or begin a block of layers with it."""
        if blk.number % self._size:
            self._g.add(self._x, y)
            return
        self._g.cross_layer.copy(self._x, self._earlier, self._count * self._g.embedding_length)
        self._g.cross_layer.copy(y, self._x)
        self._count += 1

    def add(self, y: X) -> None:
        """Add the output of a feed-forward network."""
        self._g.add(self._x, y)
