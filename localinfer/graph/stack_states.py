"""Stacks of layers that update a low and a high state in turn (HRM; Wang et al., 2025), composed of a builder's
operations."""

from typing import Generic

from localinfer.graph.builder import Block, Builder, X
from localinfer.graph.properties.repeated_layers import HIGH_CYCLES, LOW_CYCLES, PER_STACK


class StackStates(Generic[X]):
    """The residual stream `x` and the two states, of which the embedding is the high one. Create it before the first
    layer."""

    def __init__(self, g: Builder[X], x: X) -> None:
        self._g, self.x = g, x
        self._size, self._cycles = g.hparams.count(PER_STACK), g.hparams.count(LOW_CYCLES)
        g.hparams.accept(HIGH_CYCLES)  # the number of layers has it, too
        self._high, self._low = g.cross_layer.buffer(g.embedding_length), g.cross_layer.buffer(g.embedding_length)
        g.cross_layer.copy(x, self._high)
        g.add_vector(x, "hrm.z_l_init")

    def begin(self, blk: Block) -> None:
        """Begin a layer. The normalized output of a stack is the new low state or, after several cycles, the new high
        one; the input of the next stack is the sum of both."""
        stack, number = divmod(blk.number, self._size)
        if stack and number == 0:
            self._g.norm_groups(self.x, self._g.embedding_length, out=self.x)
            self._g.cross_layer.copy(self.x, self._low if stack % (self._cycles + 1) else self._high)
            self._g.cross_layer.copy(self._high, self.x)
            self._g.add(self.x, self._low)
