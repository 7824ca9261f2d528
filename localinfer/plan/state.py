"""State: what layers keep of the past in numbers of a fixed size, which every token changes in place.

The tail of a convolution is such a state, or the matrix of a recurrent layer. What is added to it cannot be taken out
again. So a sequence goes back to a copy that was made where it is likely to be needed: where turns of a conversation
begin and end. There is room for some copies; a new one takes the place of the oldest.
"""

from collections.abc import Sequence

import numpy as np

from localinfer.plan.buffers import Region
from localinfer.plan.memory import Bytes, Memory
from localinfer.plan.plan import Plan

COPIES = 4  # two for each turn: the last two turns of a conversation can be answered anew


class State(Memory):
    """The states of all layers. Copies are named by how many positions were remembered when they were made."""

    rewinds = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._now: list[Region] = []
        self._copies: list[list[Region]] = [[] for _ in range(COPIES)]
        self._free, self._kept = list(range(COPIES)), dict[int, int]()  # n_past -> which copy, the oldest first
        self._n_past = 0
        self._is_whole = True  # False from `place` to `commit`: a run that ended in between left something of it

    def layer(self, nbytes: int) -> Region:
        """A state of one more layer; all zero at position 0."""
        self._now.append(self._plan.region(nbytes))
        for copy in self._copies:
            copy.append(self._plan.region(nbytes))
        return self._now[-1]

    @property
    def nbytes(self) -> int:
        return (1 + COPIES) * sum(region.nbytes for region in self._now)

    def reset(self) -> None:
        for region in self._now:
            region.view(np.uint8)[:] = 0
        self._forget_copies(beyond=-1)
        self._n_past, self._is_whole = 0, True

    def fork(self) -> Memory:
        raise NotImplementedError

    def reserve(self, first: int, count: int) -> None:
        pass

    def place(self, first: int, count: int, at: int = 0) -> None:  # noqa: ARG002 (there is always room)
        assert (self._is_whole, self._n_past) == (True, first), "a state goes on from where it is"
        self._is_whole = False

    def commit(self, n_past: int) -> None:
        self._n_past, self._is_whole = n_past, True

    def reach(self, n: int) -> int:
        if self._is_whole and n >= self._n_past:
            return self._n_past
        return max((kept for kept in self._kept if kept <= n), default=0)

    def rewind(self, n: int) -> None:
        if not (self._is_whole and n == self._n_past):
            for region, copy in zip(self._now, self._copies[self._kept[n]], strict=True):
                region.view(np.uint8)[:] = copy.view(np.uint8)
            self._n_past, self._is_whole = n, True
        self._forget_copies(beyond=n)

    def keep(self) -> None:
        if self._n_past in self._kept or not self._n_past:
            return
        which = self._free.pop() if self._free else self._kept.pop(next(iter(self._kept)))
        for region, copy in zip(self._now, self._copies[which], strict=True):
            copy.view(np.uint8)[:] = region.view(np.uint8)
        self._kept[self._n_past] = which

    def _forget_copies(self, beyond: int) -> None:
        for n_past in [n_past for n_past in self._kept if n_past > beyond]:
            self._free.append(self._kept.pop(n_past))

    def save(self) -> Sequence[Bytes]:
        """The number of positions, then the state of each layer."""
        n_past = np.array([self._n_past], np.int64).view(np.uint8)
        return [n_past, *(region.view(np.uint8).copy() for region in self._now)]

    def load(self, saved: Sequence[Bytes]) -> None:
        self.reset()
        [n_past] = saved[0].view(np.int64)
        for region, kept in zip(self._now, saved[1:], strict=True):
            region.view(np.uint8)[:] = kept
        self._n_past = int(n_past)
