"""Speculative decoding of a run: drafting, verification and statistics.

A pass over [last token, draft token, draft token, ...] yields the logits after each of them. They go to the run's own
token selector, row by row, as in normal decoding: as long as it selects the draft token, the next row is valid, too.
When it selects another token, that one counts, and the model rewinds the draft tokens after it. A model with recurrent
state may have to rewind accepted tokens as well; these are evaluated again at the beginning of the next pass.

So the text is that of normal decoding: every token is selected by bit-identical logits and by the same random
numbers in the same order, with any drafter, sampler and constraint.

A draft token x is accepted when x is sampled, which has the probability p(x) that the sampler leaves it. Rejection
sampling (Leviathan et al., 2023) accepts a deterministic draft token equally often: with min(1, p(x) / q(x)), where
q(x) = 1. It accepts more only of tokens that are sampled from a draft model's q, with the sum of min(p, q) over all
tokens; but then the text of a seed would depend on the draft model. llama.cpp compares sampled tokens, too.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import zip_longest
from time import perf_counter
from typing import Protocol

from localinfer.generation.pieces import Piece, Stats
from localinfer.generation.speculative.draft_head import open_draft_head
from localinfer.generation.speculative.draft_length import DraftLengthModel
from localinfer.generation.speculative.draft_model import DraftModel
from localinfer.generation.speculative.prompt_lookup import PromptLookup
from localinfer.generation.token_selection import SelectPiece
from localinfer.options import Options
from localinfer.runtime.batch import Logits
from localinfer.runtime.decode_loop import StepInput
from localinfer.runtime.sequence_engine import SequenceEngine


class Drafter(Protocol):
    """A drafter: it follows a text token by token and drafts the next ones. One that `is_cheap` evaluates no model."""

    is_cheap: bool

    def accept_prompt(self, ids: Iterable[int]) -> None:
        """Process the tokens of the prompt."""

    def accept(self, id: int) -> None:
        """Process the next token."""

    def choose_length(self, min_tokens: int, max_tokens: int) -> float:
        """Choose a draft length between `min_tokens` and `max_tokens`, and return the expected speedup; 1 means no
        draft."""

    def draft(self) -> Sequence[int]:
        """Return the draft tokens of the chosen length."""


class SpeculativeRun:
    """Speculative decoding of one run. Each step uses the drafter with the highest expected speedup.

    `length_model` collects measurements of the model.
    """

    def __init__(
        self,
        engine: SequenceEngine,
        drafters: Sequence[Drafter],
        length_model: DraftLengthModel,
        stats: Stats,
        *,
        min_draft: int,
        max_draft: int,
    ) -> None:
        self._engine, self._drafters, self._length_model, self._stats = engine, drafters, length_model, stats
        self._min_draft, self._max_draft = min_draft, min(max_draft, engine.compiled_graph.max_step_tokens - 1)
        self._recomputed: list[int] = []  # accepted tokens that must be evaluated again
        self._tokens: list[int] = []  # the text up to the last step's first token
        self._draft: Sequence[int] = ()  # the last step's draft tokens
        self._started_at = self._submitted_at = 0.0
        self._seconds = self._seconds_without_draft = 0.0

    def accept_prompt(self, ids: Sequence[int]) -> None:
        """Process the tokens of the prompt."""
        for drafter in self._drafters:
            drafter.accept_prompt(ids)

    @property
    def is_cheap(self) -> bool:
        """Whether all drafters are cheap enough for the scheduler thread."""
        return all(each.is_cheap for each in self._drafters)

    def next_tokens(self, id: int, remaining: int) -> StepInput:
        """Return the tokens of the next step: tokens to evaluate again, the last token `id`, and draft tokens.

        At most `remaining` pieces can result.
        """
        self._accept(id)
        self._started_at = perf_counter()
        recomputed = self._recomputed
        self._draft = self._new_draft(min(self._max_draft - len(recomputed), remaining - 1))
        self._tokens = [*self._engine.sequence.tokens, *recomputed, id]
        self._submitted_at = perf_counter()
        return StepInput([*recomputed, id, *self._draft], skip=len(recomputed))

    def verify(self, rows: Logits, select: SelectPiece, is_last: Callable[[Piece], bool]) -> list[Piece]:
        """Return the accepted pieces of a step, at least one, by the logits after the last token and after each draft
        token."""
        ended = perf_counter()
        draft, tokens, recomputed = self._draft, self._tokens, self._recomputed
        pieces: list[Piece] = []
        try:
            for row, draft_id in zip_longest(rows, draft):
                pieces.append(select(row, tokens))
                if pieces[-1].id != draft_id or is_last(pieces[-1]):
                    break
                tokens.append(draft_id)
        finally:
            self._recomputed = tokens[self._engine.rewind(len(tokens)) :]
        for piece in pieces[:-1]:
            self._accept(piece.id)
        self._length_model.cost.update(len(recomputed) + 1 + len(draft), ended - self._submitted_at)
        if (n_accepted := len(pieces) - 1) < len(draft):
            self._length_model.update_rejected(n_accepted, len(self._recomputed))
        self._seconds += ended - self._started_at
        self._stats.drafted_tokens += len(draft)
        self._stats.drafts += bool(draft)
        return pieces

    def count_piece(self, *, is_draft: bool) -> None:
        """Update the statistics for a yielded piece. Pieces after a stop string are not yielded and do not count."""
        if not self._seconds:  # the first piece belongs to prefill
            return
        self._seconds_without_draft += self._length_model.cost.one_token_seconds
        self._stats.accepted_tokens += is_draft
        if self._stats.drafted_tokens:  # otherwise the ratio is only that of two measurements of the same thing
            self._stats.speedup = self._seconds_without_draft / self._seconds

    def _new_draft(self, max_tokens: int) -> Sequence[int]:
        if not self._length_model.cost.one_token_seconds:  # the time of a single token must be measured first
            return ()
        gain, number = max(
            (drafter.choose_length(self._min_draft, max_tokens), -n) for n, drafter in enumerate(self._drafters)
        )
        return self._drafters[-number].draft() if gain > 1 else ()

    def _accept(self, id: int) -> None:
        for drafter in self._drafters:
            drafter.accept(id)


class SpeculativeDecoder:
    """The drafters and measurements of a model, shared by its runs."""

    def __init__(self, engine: SequenceEngine, draft: SequenceEngine | None) -> None:
        self._engine = engine
        self._length_model = DraftLengthModel()
        self._draft_model = (
            DraftModel(
                draft, self._length_model, engine.n_vocab, relative_cost=weight_bytes(draft) / weight_bytes(engine)
            )
            if draft
            else None
        )
        self._draft_head = open_draft_head(engine, self._length_model)

    def new_run(self, tokens: Sequence[int], names: Collection[str], options: Options, stats: Stats) -> SpeculativeRun:
        """Return the speculative decoding of a run after these tokens, with the drafters `names`:
        ngram, draft, head."""
        drafters: list[Drafter] = [PromptLookup(self._length_model)] if "ngram" in names else []
        for name, model in (("draft", self._draft_model), ("head", self._draft_head)):
            if model and name in names:
                model.p_min = options.spec_draft_p_min
                drafters.append(model)
        min_draft, max_draft = options.spec_draft_n_min, options.spec_draft_n_max
        speculation = SpeculativeRun(
            self._engine, drafters, self._length_model, stats, min_draft=min_draft, max_draft=max_draft
        )
        speculation.accept_prompt(tokens)
        return speculation


def weight_bytes(engine: SequenceEngine) -> int:
    """Return the bytes of an engine's weights, an upper bound of the bytes that a pass reads."""
    return sum(tensor.nbytes for tensor in engine.file.tensors.values())
