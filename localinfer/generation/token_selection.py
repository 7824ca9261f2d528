"""Selection of the next token: a sampler, a constraint, and the log-probabilities of the piece."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.generation.pieces import Alternative, Piece
from localinfer.generation.sampling import SamplerChain, SequenceBreakers
from localinfer.generation.sampling.logprobs import entropy, log_probabilities, most_probable
from localinfer.options import Options
from localinfer.runtime.sequence_engine import SequenceEngine
from localinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from localinfer.generation.structured.constraint import Constraint

Logits = NDArray[np.float32]
SamplerFunction = Callable[[Logits, Sequence[int]], int]
"""Returns the id of the next token for logits, float32 (n_vocab,), and the ids of prompt and text so far.
Rows of images and sounds have negative ids."""
SelectPiece = Callable[[Logits, Sequence[int]], Piece]
"""Returns the next piece for the logits (n_vocab,) after these tokens."""


class TokenSelector:
    """A selector that chooses a token by its logits and returns a piece without text.

    With `logprobs`, the piece has its token's log-probability and that many most probable tokens; `text_of` returns
    their texts. With `runs_in_scheduler_thread`, the scheduler thread may run the selector, unless it has a constraint
    or log-probabilities, which would delay other sequences.
    """

    def __init__(
        self,
        sampler: SamplerFunction,
        constraint: "Constraint | None" = None,
        logprobs: int = 0,
        text_of: Callable[[int], str] = str,
        *,
        runs_in_scheduler_thread: bool = False,
    ) -> None:
        self.constraint = constraint
        self.runs_in_scheduler_thread = runs_in_scheduler_thread and constraint is None and not logprobs
        self._sampler, self._logprobs, self._text_of = sampler, logprobs, text_of

    def __call__(
        self, logits: Logits, tokens: Sequence[int], forced: int | None = None, n_left: int | None = None
    ) -> Piece:
        """Return the piece after `tokens`. `forced` is its token if it is already determined.

        If at most `n_left` tokens may follow, a constrained answer is completed within them; None is no limit.
        """
        constraint = self.constraint
        if constraint is None:
            return self.piece(logits, self._sampler(logits, tokens) if forced is None else forced)
        if constraint.closing_token is not None:
            forced = constraint.closing_token
        id = self._sampler(constraint.mask_logits(logits), tokens) if forced is None else forced
        return self.piece(logits, constraint.accept(id, n_left))

    @property
    def is_complete(self) -> bool:
        """Whether the constraint allows no further token."""
        return self.constraint is not None and self.constraint.is_complete

    @property
    def is_closing(self) -> bool:
        """Whether the answer is being closed, or was, because it reached its limit of tokens."""
        return self.constraint is not None and self.constraint.is_closing

    def accept(self, id: int) -> None:
        """Inform the constraint of a token that was not selected here."""
        if self.constraint is not None:
            self.constraint.accept(id)

    def piece(self, logits: Logits, id: int) -> Piece:
        """Return the piece of a token, given the logits that chose it."""
        return with_logprobs(logits, id, self._logprobs, self._text_of) if self._logprobs else Piece("", id)


def with_logprobs(logits: Logits, id: int, n: int, text_of: Callable[[int], str]) -> Piece:
    """Return a piece without text that has its token's log-probability, the entropy and the `n`
    most probable tokens."""
    logprobs = log_probabilities(logits)
    top = (Alternative(text_of(alternative), alternative, p) for alternative, p in most_probable(logprobs, n))
    return Piece("", id, logprob=float(logprobs[id]), entropy=entropy(logprobs), top=tuple(top))


def model_sampler(
    options: Options, engine: SequenceEngine, tokenizer: Tokenizer, excluded_id: int | None = None
) -> SamplerChain:
    """Return the sampler chain that the options describe, for the vocabulary of a model. It never chooses
    `excluded_id`."""
    n_ctx = engine.n_ctx
    options = replace(
        options,
        repeat_last_n=n_ctx if options.repeat_last_n < 0 else options.repeat_last_n,
        dry_penalty_last_n=n_ctx if options.dry_penalty_last_n < 0 else options.dry_penalty_last_n,
    )
    excluded = tokenizer.suppressed | tokenizer.eog if options.ignore_eos else tokenizer.suppressed
    excluded = excluded if excluded_id is None else excluded | {excluded_id}
    texts = () if "none" in options.dry_sequence_breaker else options.dry_sequence_breaker
    breakers = SequenceBreakers(texts, tokenizer.token_bytes, lambda text: tokenizer.encode(text, add_special=False))
    return SamplerChain(options, engine.n_vocab, dict.fromkeys(excluded, -np.inf), breakers)


def checked_sampler(sampler: SamplerFunction, n_vocab: int) -> SamplerFunction:
    """Wrap a user's sampler: it receives copies of its arguments, and its result is checked.

    Raises UsageError if `sampler` is not callable; so does the wrapper if the result is not a token id.
    """
    if not callable(sampler):
        raise UsageError(f"sampler: must be a function of logits and ids, not {type(sampler).__name__}")

    def sample(logits: Logits, tokens: Sequence[int]) -> int:
        result = sampler(logits.copy(), list(tokens))
        try:
            id = index(result)
        except TypeError:
            raise UsageError(f"sampler: must return a token id, not {type(result).__name__}") from None
        if not 0 <= id < n_vocab:
            raise UsageError(f"sampler: there is no token {id}, the vocabulary has {n_vocab}")
        return id

    return sample
