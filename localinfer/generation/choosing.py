"""How a run chooses its tokens: by which sampler, within which form, and what is told of a token's probability."""

from collections.abc import Callable, Sequence
from operator import index
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.generation.pieces import Alternative, Piece
from localinfer.generation.sampling.logprobs import entropy, log_probabilities, most_probable

if TYPE_CHECKING:
    from localinfer.generation.constraint import Constraint

Logits = NDArray[np.float32]
SamplerFunction = Callable[[Logits, Sequence[int]], int]
"""The id of the next token, by the logits (n_vocab,) after these ids: all of the context, prompt and text."""


class Chooser:
    """Makes a piece without text of the logits after some tokens. `text_of` shows a token."""

    def __init__(
        self,
        sampler: SamplerFunction,
        constraint: "Constraint | None" = None,
        logprobs: int = 0,
        text_of: Callable[[int], str] = str,
    ) -> None:
        self.constraint = constraint
        self._sampler, self._logprobs, self._text_of = sampler, logprobs, text_of

    def __call__(self, logits: Logits, tokens: Sequence[int], forced: int | None = None) -> Piece:
        """The next one; it is `forced` where there is no choice."""
        if self.constraint is None:
            return self._told(logits, self._sampler(logits, tokens) if forced is None else forced)
        id = self._sampler(self.constraint.masked(logits), tokens) if forced is None else forced
        self.constraint.accept(id)
        return self._told(logits, id)

    @property
    def is_complete(self) -> bool:
        """Whether nothing more may come."""
        return self.constraint is not None and self.constraint.is_complete

    def follow(self, id: int) -> None:
        """A token that was not chosen here."""
        if self.constraint is not None:
            self.constraint.accept(id)

    def _told(self, logits: Logits, id: int) -> Piece:
        return told(logits, id, self._logprobs, self._text_of) if self._logprobs else Piece("", id)


def told(logits: Logits, id: int, n: int, text_of: Callable[[int], str]) -> Piece:
    """A piece without text that tells how probable it was by these logits, and the `n` most probable tokens."""
    logprobs = log_probabilities(logits)
    top = (Alternative(text_of(other), other, p) for other, p in most_probable(logprobs, n))
    return Piece("", id, logprob=float(logprobs[id]), entropy=entropy(logprobs), top=tuple(top))


def checked(own: SamplerFunction, n_vocab: int) -> SamplerFunction:
    """A sampler of the user's, held to what samplers do; it may keep and change what it is given."""
    if not callable(own):
        raise UsageError(f"sampler: must be a function of logits and ids, not {type(own).__name__}")

    def sample(logits: Logits, tokens: Sequence[int]) -> int:
        answer = own(logits.copy(), list(tokens))
        try:
            id = index(answer)
        except TypeError:
            raise UsageError(f"sampler: must return the id of a token, not {type(answer).__name__}") from None
        if not 0 <= id < n_vocab:
            raise UsageError(f"sampler: there is no token {id}, the vocabulary has {n_vocab}")
        return id

    return sample
