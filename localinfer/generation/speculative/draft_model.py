"""Drafts by a smaller model with the same vocabulary: its most probable tokens.

The draft model evaluates the same text, some tokens later, and rewinds rejected draft tokens. The acceptance rate
depends on the draft model's own probability, so it is measured for each tenth of the probabilities. Drafting continues
as long as one more draft token yields more tokens than the target model would in the same time.
"""

from collections.abc import Iterable
from itertools import repeat
from time import perf_counter

import numpy as np

from localinfer.generation.speculative.draft_length import DraftLengthModel, RunningMedian
from localinfer.runtime.batch import Logits
from localinfer.runtime.sequence_engine import SequenceEngine

N_PROBABILITY_BINS = 10  # the acceptance rate is measured for each bin of the draft model's probability
PRIOR_ACCEPTANCE = 0.9  # high, so that drafting is tried at first
PRIOR_COUNT = 4.0  # weight of the prior in draft tokens
DECAY = 0.97  # weight of earlier draft tokens with each new one
PRIOR_DECAY = 0.99  # without drafts the rate returns to the prior, so that drafting is tried again


class AcceptanceRate:
    """A decaying average of the acceptance rate that starts at `prior`."""

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._n_accepted, self._n_drafted = PRIOR_COUNT * prior, PRIOR_COUNT

    @property
    def value(self) -> float:
        return self._n_accepted / self._n_drafted

    def update(self, *, is_accepted: bool) -> None:
        self._n_accepted = self._n_accepted * DECAY + is_accepted
        self._n_drafted = self._n_drafted * DECAY + 1

    def decay_to_prior(self) -> None:
        self._n_accepted += (1 - PRIOR_DECAY) * (PRIOR_COUNT * self._prior - self._n_accepted)
        self._n_drafted += (1 - PRIOR_DECAY) * (PRIOR_COUNT - self._n_drafted)


class DraftModel:
    """A drafter that runs a draft model for a target model. It outlives a run, as its engine has a prefix cache.

    The draft model knows no rows of images and sounds, so it drafts nothing for a text with them.
    """

    is_cheap, accepts_media = False, False

    def __init__(
        self, engine: SequenceEngine, length_model: DraftLengthModel, n_vocab: int, relative_cost: float
    ) -> None:
        """Initialize the drafter.

        `length_model` and `n_vocab` are those of the target model, and `relative_cost` estimates the time of a draft
        model's pass relative to one of the target model until it is measured.
        """
        self._engine, self._length_model, self._n_vocab, self._prior_relative_cost = (
            engine,
            length_model,
            n_vocab,
            relative_cost,
        )
        self.p_min = 0.0  # less probable tokens are not drafted
        self._pass_seconds = RunningMedian()
        self._ids: list[int] = []
        self._is_disabled = False
        self._n_agreed = 0  # length of the text's known common prefix with the engine's sequence
        self._pending: list[tuple[int, int]] = []  # unverified draft tokens with their probability bins
        self._acceptance, self._bin_acceptance = (
            AcceptanceRate(PRIOR_ACCEPTANCE),
            [AcceptanceRate((bin_index + 0.5) / N_PROBABILITY_BINS) for bin_index in range(N_PROBABILITY_BINS)],
        )
        self._min_tokens = self._max_tokens = 0
        self._speedup = 1.0

    def accept_prompt(self, ids: Iterable[int]) -> None:
        self._ids, self._n_agreed, self._pending = [*ids], 0, []
        self._is_disabled = not self.accepts_media and min(self._ids, default=0) < 0

    def accept(self, id: int) -> None:
        self._ids.append(id)
        if self._pending:
            (draft_id, bin_index), *remaining = self._pending
            for rate in (self._acceptance, self._bin_acceptance[bin_index]):
                rate.update(is_accepted=draft_id == id)
            self._pending = remaining if draft_id == id else []
        else:
            self._acceptance.decay_to_prior()

    def choose_length(self, min_tokens: int, max_tokens: int) -> float:
        if self._is_disabled:
            return 1.0
        n_free = self._engine.n_ctx - len(self._ids)
        self._min_tokens, self._max_tokens = (
            min_tokens,
            min(max_tokens, n_free) if not self._engine.runner.uses_ring_buffer else max_tokens,
        )
        _, self._speedup = self._length_model.best_length(
            repeat(self._acceptance.value), min_tokens, self._max_tokens, self._relative_cost
        )
        return self._speedup

    def draft(self) -> list[int]:
        acceptance, slope = self._acceptance.value, self._length_model.cost.slope
        all_accepted, logits = 1.0, self._first_logits()
        self._pending = []
        while True:
            id = int(logits.argmax())
            probability = self._probability(logits, id) if np.isfinite(logits[id]) else 0.0
            if not probability > 0:  # the draft model is bad: a logit is NaN or infinite, or all are -inf
                self._acceptance.update(is_accepted=False)
                break
            bin_index = min(int(probability * N_PROBABILITY_BINS), N_PROBABILITY_BINS - 1)
            all_accepted *= self._bin_acceptance[bin_index].value
            has_minimum = len(self._pending) >= self._min_tokens
            if probability < self.p_min or (has_minimum and all_accepted < self._speedup * slope):
                break
            self._pending.append((id, bin_index))
            has_minimum = len(self._pending) >= self._min_tokens
            if len(self._pending) == self._max_tokens or (
                has_minimum and all_accepted * acceptance < self._speedup * (slope + self._relative_cost)
            ):
                break
            logits = self._next_logits(id)
        self._pause()
        if len(self._pending) < self._min_tokens:
            self._pending = []
        return [id for id, _ in self._pending]

    @property
    def _relative_cost(self) -> float:
        """The time of one draft token relative to a pass of the target model for one token."""
        return (
            self._pass_seconds.value / self._length_model.cost.one_token_seconds
            if self._pass_seconds.value
            else self._prior_relative_cost
        )

    def _first_logits(self) -> Logits:
        """Return the logits after the text."""
        cached, ids = self._engine.sequence.tokens, self._ids
        end = min(len(cached), len(ids) - 1)
        n_common = next((n for n in range(min(self._n_agreed, end), end) if cached[n] != ids[n]), end)
        self._n_agreed = len(ids)
        logits = self._logits(ids[self._engine.rewind(n_common) :])
        self._engine.sequence.begin_draft(0)
        return logits

    def _next_logits(self, id: int) -> Logits:
        """Return the logits after one more draft token."""
        return self._logits([id])

    def _probability(self, logits: Logits, id: int) -> float:
        """Return the probability of a draft token."""
        return 1 / float(np.exp(logits - logits[id]).sum())

    def _pause(self) -> None:
        """Announce that no more draft tokens are needed for now."""
        self._engine.pause()

    def _logits(self, ids: list[int]) -> Logits:
        start = perf_counter()
        logits = self._engine.evaluate(ids)[: self._n_vocab]
        if len(ids) == 1:
            self._pass_seconds.update(perf_counter() - start)
        return logits
