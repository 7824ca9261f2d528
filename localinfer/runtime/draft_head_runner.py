"""The draft head runner: evaluates the draft head of a model, whose ops are in the model's compiled graph.

A draft head reads the caches of a sequence and what the model has computed for its tokens. It changes no sequence.
"""

from collections import abc
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.recording.draft_head import DraftHead, Selector
from localinfer.runtime.batch import Logits, Segment, concatenate
from localinfer.runtime.compiled_graph import Floats, float_rows
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.segment_media import media_inputs
from localinfer.runtime.sequence import Sequence


@dataclass(frozen=True, eq=False)
class DraftHeadInput:
    """The input of the draft head for one sequence: a token `id` at a `position` that the model has not evaluated yet.

    `previous_state` is the draft head's own hidden state of the previous token, if the model has not evaluated that
    one either.
    """

    sequence: Sequence
    id: int
    position: int
    previous_state: Floats | None = None

    @property
    def state(self) -> Floats | float:
        """The hidden state of the previous token: after all layers of the model, or 0 where it is not stored."""
        if self.previous_state is not None:
            return self.previous_state
        states = (cache.hidden_state(self.position - 1) for cache in self.sequence.caches)
        return next((state for state in states if state is not None), 0.0)


class DraftBlockOutput(NamedTuple):
    """What a draft head computes for a block of tokens: for each draft token its logits, before a Markov head changes
    them, (n, rows of the output layer), and the states that they come from, (n, n_embd)."""

    logits: Logits
    states: Floats


class DraftHeadRunner:
    """Evaluates the draft head of a runner's model."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self._graph = runner, runner.compiled_graph

    # --- heads that draft one token at a time ---

    def evaluate_one(self, input: DraftHeadInput) -> tuple[Logits, Floats]:
        """Evaluate the draft head for one sequence.

        Return its logits, float32 (n_vocab,), valid until the next call, and its hidden state of the token. Pass that
        as `previous_state` to draft one token further.
        """
        logits, states = self.evaluate([input])
        return logits[0], states[0]

    def evaluate(self, inputs: abc.Sequence[DraftHeadInput]) -> tuple[Logits, Floats]:
        """Evaluate the draft head for several sequences, at most `graph.sequences`, in one pass.

        Return logits (len(inputs), n_vocab), valid until the next call, and hidden states (len(inputs), n),
        bit-identical to separate evaluations.
        """
        with self._runner.lock:
            with self._runner.page_table_lock:
                self._runner.retry_after_eviction(lambda: self._set_cache_inputs(inputs))
                self._set_inputs(inputs)
            return self._run([each.state for each in inputs])

    def _set_cache_inputs(self, inputs: abc.Sequence[DraftHeadInput]) -> None:
        """Point the kernels to the KV caches of the sequences. Raises OutOfPagesError."""
        shares_keys = self._graph.model_graph.draft_head_shares_keys
        for row, each in enumerate(inputs):
            for cache in each.sequence.kv_caches:
                (cache.set_query_inputs if shares_keys else cache.set_draft_inputs)(each.position, row)

    def _set_inputs(self, inputs: abc.Sequence[DraftHeadInput]) -> None:
        """Write a batch in which each token belongs to a different sequence."""
        segments = [Segment(each.sequence, np.array([each.id], np.int32)) for each in inputs]
        positions = [np.array([each.position]) for each in inputs]
        media = media_inputs(segments, [each.sequence.media for each in inputs], positions)
        ids = concatenate([each.ids for each in segments])
        self._graph.set_inputs(ids, concatenate(positions), media=media)
        for row, each in enumerate(inputs):
            self._graph.model_graph.set_adapter_scales(row, 1, each.sequence.modifiers.scales)

    def _run(self, previous_states: abc.Sequence[Floats | float]) -> tuple[Logits, Floats]:
        """Run the draft head, given the hidden states of the previous tokens. Return logits (tokens, n_vocab), valid
        until the next call, and the draft head's hidden states (tokens, n)."""
        head, count = self._graph.model_graph.draft_head, len(previous_states)
        assert isinstance(head, DraftHead)
        for row, state in zip(float_rows(head.previous, count), previous_states, strict=True):
            row[:] = state
        head.n_drafts.set(count)
        head.draft_rows.view(np.int32)[:count] = np.arange(count)
        self._graph.run(head.embed_op, len(self._graph.graph.ops), count)
        logits = of_all_tokens(float_rows(head.logits, count), head.token_ids, self._graph.n_vocab)
        return logits, float_rows(head.state, count).copy()

    # --- heads that draft a block of tokens at once ---

    def evaluate_block(self, sequence: Sequence, id: int, position: int) -> DraftBlockOutput:
        """Evaluate a draft head that drafts a block of tokens at once, after the token `id` at a position that the
        model has not evaluated yet.

        There are fewer draft tokens at the end of the context, and while kernels for large batches are compiled.
        """
        graph, head = self._graph, self._graph.model_graph.draft_block
        assert head
        count = min(head.block_size, graph.max_batch)
        if not self._runner.uses_ring_buffer:
            count = min(count, graph.n_ctx - position)
        ids, positions = np.full(count, head.mask_token, np.int32), np.arange(position, position + count)
        ids[0] = id

        def set_cache_inputs() -> None:
            for cache in sequence.kv_caches:
                cache.set_block_inputs(position, count, 0, causal=head.is_causal)

        with self._runner.lock:
            self._runner.require_open()
            with self._runner.page_table_lock:
                self._runner.retry_after_eviction(set_cache_inputs)
                media = media_inputs([Segment(sequence, ids)], [sequence.media], [positions])
                graph.set_inputs(ids, positions, media=media)
                graph.model_graph.set_adapter_scales(0, count, sequence.modifiers.scales)
            n_drafts = count - head.first_row
            head.n_drafts.set(n_drafts)
            head.draft_rows.view(np.int32)[:n_drafts] = np.arange(head.first_row, count)
            graph.run(head.embed_op, head.end_op, count)
            return DraftBlockOutput(float_rows(head.logits, n_drafts).copy(), float_rows(head.states, n_drafts).copy())

    def draft_token_logits(self, block: DraftBlockOutput, row: int, previous: int) -> tuple[Logits, float | None]:
        """Return the logits of a draft token of a block, (n_vocab,), which the token before it changes if there is a
        Markov head or a selector, and the probability that it is accepted, by the confidence head: None without one."""
        graph, head = self._graph, self._graph.model_graph.draft_block
        logits, confidence = block.logits[row], None
        assert head
        with self._runner.lock:
            self._runner.require_open()
            if markov := head.markov:
                markov.row.set(1)
                markov.previous.view(np.int32)[0] = previous
                float_rows(markov.state, 1)[0] = block.states[row]
                graph.run(markov.start_op, len(graph.graph.ops), 1)
                logits = logits + float_rows(markov.bias, 1)[0]
                if markov.confidence:
                    confidence = sigmoid(float(float_rows(markov.confidence, 1)[0, 0]))
            logits = of_all_tokens(logits[None], head.token_ids, graph.n_vocab)[0]
            if head.selector:
                logits = self._select_candidates(head.selector, logits, block.states[row], previous)
            return logits, confidence

    def _select_candidates(self, selector: Selector, logits: Logits, projection: Floats, previous: int) -> Logits:
        """Return the logits of a draft token, (n_vocab,), as a selector changes them: -inf for all but the most
        probable tokens. `projection` is that of the token's state."""
        candidates = np.argpartition(logits, -selector.n_candidates)[-selector.n_candidates :]
        selector.row.set(1)
        selector.rows.set(selector.n_candidates)
        selector.previous.view(np.int32)[0] = previous
        selector.candidates.view(np.int32)[:] = candidates
        self._graph.run(selector.start_op, len(self._graph.graph.ops), 1)
        weights = float_rows(selector.predecessor, 1)[0] * projection
        selected = np.full_like(logits, -np.inf)
        selected[candidates] = logits[candidates] + float_rows(selector.successors, selector.n_candidates) @ weights
        return selected


def of_all_tokens(logits: Logits, token_ids: NDArray[np.int64] | None, n_vocab: int) -> Logits:
    """Return the logits of the whole vocabulary, -inf for tokens that an output layer lacks: its rows are those of
    `token_ids` (None: all)."""
    if token_ids is None:
        return logits
    whole = np.full((len(logits), n_vocab), -np.inf, np.float32)
    whole[:, token_ids] = logits
    return whole


def sigmoid(x: float) -> float:
    """Return 1 / (1 + exp(-x))."""
    return float(0.5 + 0.5 * np.tanh(0.5 * x))
