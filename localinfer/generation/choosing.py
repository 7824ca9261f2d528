"""How a run chooses its next token: a sampler picks one, within the form that an answer shall have, if any; the piece
that comes of it may also tell how probable the token was.
"""

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
"""Returns the id of the next token, by the logits, float32 (n_vocab,), and the ids of prompt and text so far."""
Choose = Callable[[Logits, Sequence[int]], Piece]
"""The next piece, by the logits (n_vocab,) after these tokens."""


class Chooser:
    """Chooses a token by its logits, and makes a piece of it that has no text yet.

    With `logprobs`, the piece has its token's probability and as many of the most probable tokens; `text_of` makes the
    texts of these. One that `is_quick` may choose for many runs in turn: what their forms and probabilities take, and
    samplers of users, are not for others to wait for.
    """

    def __init__(
        self,
        sampler: SamplerFunction,
        constraint: "Constraint | None" = None,
        logprobs: int = 0,
        text_of: Callable[[int], str] = str,
        *,
        is_quick: bool = False,
    ) -> None:
        self.constraint = constraint
        self.is_quick = is_quick and constraint is None and not logprobs
        self._sampler, self._logprobs, self._text_of = sampler, logprobs, text_of

    def __call__(self, logits: Logits, tokens: Sequence[int], forced: int | None = None) -> Piece:
        """The piece that comes after `tokens`. `forced` is its token where that is known already."""
        if self.constraint is None:
            return self._piece(logits, self._sampler(logits, tokens) if forced is None else forced)
        id = self._sampler(self.constraint.masked(logits), tokens) if forced is None else forced
        self.constraint.accept(id)
        return self._piece(logits, id)

    @property
    def is_complete(self) -> bool:
        """Whether the form allows no further token."""
        return self.constraint is not None and self.constraint.is_complete

    def follow(self, id: int) -> None:
        """Let the form know of a token that was not chosen here."""
        if self.constraint is not None:
            self.constraint.accept(id)

    def _piece(self, logits: Logits, id: int) -> Piece:
        return with_logprobs(logits, id, self._logprobs, self._text_of) if self._logprobs else Piece("", id)


def with_logprobs(logits: Logits, id: int, n: int, text_of: Callable[[int], str]) -> Piece:
    """A piece without text, with the probability that these logits give its token, and the `n` most probable tokens."""
    logprobs = log_probabilities(logits)
    top = (Alternative(text_of(other), other, p) for other, p in most_probable(logprobs, n))
    return Piece("", id, logprob=float(logprobs[id]), entropy=entropy(logprobs), top=tuple(top))


def checked(own: SamplerFunction, n_vocab: int) -> SamplerFunction:
    """A user's sampler, whose answers are checked: UsageError if one is no id of a token. It is given copies, which it
    may keep and change."""
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
