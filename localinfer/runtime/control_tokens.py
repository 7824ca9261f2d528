"""The control tokens of a sequence, which switch adapters of the model on."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from localinfer.graph.properties.embedded_adapters import EmbeddedAdapters, Numbers


@dataclass(frozen=True)
class ControlTokens:
    """The positions of a sequence's control tokens, in order, and the adapters that they switch on: none if the model
    has no adapters. They follow from the tokens, so they are the same wherever the sequence was evaluated."""

    embedded: EmbeddedAdapters | None
    positions: tuple[int, ...] = ()
    adapters: tuple[int, ...] = ()

    def extended(self, ids: Sequence[int], first: int) -> "ControlTokens":
        """Return the control tokens with those among `ids`, which are at positions `first`, `first` + 1, ..."""
        if self.embedded is None:
            return self
        switched_on = self.embedded.switched_on(ids)
        at = np.flatnonzero(switched_on)
        positions, adapters = (first + at).tolist(), switched_on[at].tolist()
        return replace(self, positions=(*self.positions, *positions), adapters=(*self.adapters, *adapters))

    def truncated(self, n: int) -> "ControlTokens":
        """Return the control tokens among the first `n` tokens of the sequence."""
        count = bisect_left(self.positions, n)
        return replace(self, positions=self.positions[:count], adapters=self.adapters[:count])

    def active(self, ids: Numbers, first: int) -> Numbers | None:
        """Return the adapter of each of the next tokens of the sequence, the first of which is at position `first`;
        None if the model has no adapters."""
        return None if self.embedded is None else self.embedded.active(ids, self.adapters, first)
