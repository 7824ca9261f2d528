"""Passes over the ops of a draft head, which are in the compiled graph of its model."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.recording.draft_head import DraftHead, Selector
from localinfer.runtime.batch import DraftBlockOutput, Logits
from localinfer.runtime.compiled_graph import CompiledGraph, Floats, float_rows


def run_draft_head(graph: CompiledGraph, previous_states: Sequence[Floats | float]) -> tuple[Logits, Floats]:
    """Run the draft head for a batch in which each token belongs to a different sequence.

    `previous_states` are the hidden states of the previous tokens. Return logits (tokens, n_vocab) and the draft head's
    hidden states (tokens, n), valid until the next call.
    """
    head, count = graph.model_graph.draft_head, len(previous_states)
    assert isinstance(head, DraftHead)
    for row, state in zip(float_rows(head.previous, count), previous_states, strict=True):
        row[:] = state
    head.n_drafts.set(count)
    head.draft_rows.view(np.int32)[:count] = np.arange(count)
    graph.run(head.embed_op, len(graph.graph.ops), count)
    logits = of_all_tokens(float_rows(head.logits, count), head.token_ids, graph.n_vocab)
    return logits, float_rows(head.state, count)


def run_draft_block(graph: CompiledGraph, count: int) -> DraftBlockOutput:
    """Run the draft head for a block of `count` tokens of a sequence."""
    head = graph.model_graph.draft_block
    assert head
    n_drafts = count - head.first_row
    head.n_drafts.set(n_drafts)
    head.draft_rows.view(np.int32)[:n_drafts] = np.arange(head.first_row, count)
    graph.run(head.embed_op, head.end_op, count)
    return DraftBlockOutput(float_rows(head.logits, n_drafts).copy(), float_rows(head.states, n_drafts).copy())


def run_draft_token(
    graph: CompiledGraph, block: DraftBlockOutput, row: int, previous: int
) -> tuple[Logits, float | None]:
    """Return the logits of a draft token of a block, (n_vocab,), which the token before it changes if there is a Markov
    head or a selector, and the probability that it is accepted, by the confidence head: None without one."""
    head, logits, confidence = graph.model_graph.draft_block, block.logits[row], None
    assert head
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
        logits = select_candidates(graph, head.selector, logits, block.states[row], previous)
    return logits, confidence


def select_candidates(
    graph: CompiledGraph, selector: Selector, logits: Logits, projection: Floats, previous: int
) -> Logits:
    """Return the logits of a draft token, (n_vocab,), as a selector changes them: -inf for all but the most probable
    tokens. `projection` is that of the token's state."""
    candidates = np.argpartition(logits, -selector.n_candidates)[-selector.n_candidates :]
    selector.row.set(1)
    selector.rows.set(selector.n_candidates)
    selector.previous.view(np.int32)[0] = previous
    selector.candidates.view(np.int32)[:] = candidates
    graph.run(selector.start_op, len(graph.graph.ops), 1)
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
