"""A sequence: the tokens that were computed, and what layers remember of them."""

from collections import abc

import numpy as np
from numpy.typing import NDArray

from localinfer.plan.memory.memory import Bytes, Memory


class Sequence:
    """`tokens` are those that are remembered, from position 0 on."""

    def __init__(self, memories: abc.Sequence[Memory]) -> None:
        self._memories = memories
        self.tokens: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def fork(self) -> "Sequence":
        """Another one that remembers the same. What both remember they share until one of them changes it."""
        other = Sequence([memory.fork() for memory in self._memories])
        other.tokens[:] = self.tokens
        return other

    def reserve(self, count: int) -> None:
        """Take room for so many tokens behind those that are remembered. Raises NoRoom."""
        for memory in self._memories:
            memory.reserve(len(self), count)

    def place(self, count: int, at: int = 0) -> None:
        """Have the next run compute so many tokens behind those that are remembered, as those from `at` on of its
        batch."""
        for memory in self._memories:
            memory.place(len(self), count, at)

    def place_ahead(self, position: int, at: int) -> None:
        """Have the token `at` of the next run look from a position that is not to be remembered. Raises NoRoom."""
        for memory in self._memories:
            memory.place_ahead(position, at)

    def state(self, position: int) -> NDArray[np.float32] | float:
        """What the token at a position has become behind all layers; 0 where that is not known."""
        states = (memory.state(position) for memory in self._memories)
        return next((state for state in states if state is not None), 0.0)

    def fits(self, lengths: abc.Sequence[int]) -> bool:
        """Whether it can `pack` so many texts."""
        return all(memory.fits(lengths) for memory in self._memories)

    def pack(self, lengths: abc.Sequence[int]) -> None:
        """Forget all tokens, and make room for a run of texts so long that do not see each other. What is computed then
        is not remembered: `reset` is due."""
        self.reset()
        for memory in self._memories:
            memory.pack(lengths)

    def commit(self, ids: abc.Iterable[int]) -> None:
        """These tokens, for which there was made room, have been computed."""
        self.tokens.extend(ids)
        for memory in self._memories:
            memory.commit(len(self))

    @property
    def rewinds(self) -> bool:
        """Whether any number of the last tokens can be forgotten; if not, only those behind what was told to `keep`."""
        return all(memory.rewinds for memory in self._memories)

    def rewind(self, n: int) -> int:
        """Forget all but the first n tokens, or more where not all is left that token n looks at; how many are kept."""
        kept = self.reach(max(0, min(n, len(self))))
        if not kept:
            self.reset()
        for memory in self._memories if kept else ():
            memory.rewind(kept)
        del self.tokens[kept:]
        return kept

    def reach(self, n: int) -> int:
        """What all memories can go back to: the first that cannot go back to n says how much further."""
        while (nearest := min((memory.reach(n) for memory in self._memories), default=n)) < n:
            n = nearest
        return n

    def keep(self) -> None:
        """Stay able to rewind to these tokens, for some time."""
        for memory in self._memories:
            memory.keep()

    def guess(self, sure: int) -> None:
        """Tokens that are computed from now on are guesses but for the first `sure`, until `rewind` says which of them
        were right: it goes back to those that are sure at least."""
        for memory in self._memories:
            memory.guess(sure)

    def reset(self) -> None:
        """Forget all tokens."""
        self.tokens.clear()
        for memory in self._memories:
            memory.reset()

    def save(self) -> list[abc.Sequence[Bytes]]:
        """Copies of all that is remembered beside the tokens, for `load`."""
        return [memory.save() for memory in self._memories]

    def load(self, tokens: abc.Sequence[int], saved: abc.Sequence[abc.Sequence[Bytes]]) -> None:
        """Remember what a sequence of these tokens has saved, of the same plan; ValueError as `Memory.load`."""
        for memory, parts in zip(self._memories, saved, strict=True):
            memory.load(parts)
        if self.reach(len(tokens)) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens are not what is remembered")
        self.tokens[:] = tokens
