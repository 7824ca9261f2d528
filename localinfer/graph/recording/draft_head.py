"""The draft head of a model: its ops and buffers, and the hidden states that a sequence keeps for it. It is an MTP head
(`operations.mtp`), or has a file of its own (`separate_heads`): an EAGLE-3 head, an assistant of Gemma 4, or a DFlash
or DSpark head, which drafts several tokens at once.

For draft tokens, whose hidden states are unknown, the head uses its own states instead. When the model evaluates
tokens, the head only computes their keys and values, if it has any; the rest is computed when drafting.

Besides the KV cache, the head needs the hidden states of a sequence's last tokens (`DraftHeadStates`), because the next
batch needs the previous token's state. If it is missing, drafts are worse, but output does not change.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.cache.sequence_cache import Bytes, SequenceCache
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.kernels.signatures import COPY_SLICES, GATHER_ROWS

MAX_STORED_STATES = 64  # of the last tokens of a batch: enough to rewind rejected draft tokens


class DraftHead(NamedTuple):
    """The ops and buffers of a draft head.

    From `start_op` on, ops compute the previous states; from `embed_op` on, the head's inputs; from `attention_op` on,
    a draft. The ops before `attention_op` also write the keys and values.
    """

    start_op: int
    embed_op: int
    attention_op: int
    states: Buffer  # of the batch's tokens; the rows after them hold the state before each segment
    previous_rows: Region  # int32 [batch]: the row of `states` with each token's previous state
    previous: Buffer  # the previous state of each token
    draft_rows: Region  # int32 [sequences]: the tokens to draft for
    state: Buffer  # the head's states of these tokens
    logits: Buffer  # of these tokens
    n_drafts: Rows  # the number of drafts, at most one per sequence
    token_ids: NDArray[np.int64] | None = None  # the token of each logit; None: all tokens
    shares_keys: bool = False  # it attends to keys and values of the model, and has none

    def rows(self) -> NDArray[np.float32]:
        """Return the rows of `states` as an array."""
        result: NDArray[np.float32] = self.states.floats.view(np.float32).reshape(-1, self.states.n)
        return result


class MarkovHead(NamedTuple):
    """The ops and buffers of a Markov head: from `start_op` to the end of the graph, for one draft token of a block."""

    start_op: int
    row: Rows  # the number of these tokens
    previous: Region  # int32 [1]: the token before it
    state: Buffer  # the block's state that it is drafted from
    bias: Buffer  # is added to its logits
    confidence: Buffer | None  # the logit of the probability that it is accepted, if there is a confidence head


class Selector(NamedTuple):
    """The ops and buffers of a selector of draft tokens: from `start_op` to the end of the graph, for one draft token
    of a block."""

    start_op: int
    row: Rows  # the number of these tokens
    rows: Rows  # the number of their candidates
    previous: Region  # int32 [1]: the token before it
    candidates: Region  # int32 [n_candidates]: the tokens that it may be
    predecessor: Buffer  # of the token before it
    successors: Buffer  # of the candidates
    n_candidates: int


class DraftBlockHead(NamedTuple):
    """The ops and buffers of a draft head that drafts a block of tokens at once: a token of the text, and mask tokens
    in the places of those that follow.

    From `start_op` on, ops compute its keys and values of the text's tokens; from `embed_op` to `end_op` - 1, a draft.
    """

    start_op: int
    embed_op: int
    end_op: int
    draft_rows: Region  # int32 [block_size]: the tokens of the block that drafts come from, from `first_row` on
    states: Buffer  # of these tokens, as the Markov head reads them, or their projections if there is a selector
    logits: Buffer  # of these tokens
    n_drafts: Rows  # the number of these tokens
    block_size: int
    first_row: int  # 1: a mask token predicts the token in its own place; 0: each token predicts the next one
    mask_token: int
    token_ids: NDArray[np.int64] | None  # the token of each logit; None: all tokens
    markov: MarkovHead | None
    selector: Selector | None
    is_causal: bool  # whether the tokens of a block attend to those before them only

    @property
    def max_drafts(self) -> int:
        """The number of tokens that a block drafts."""
        return self.block_size - self.first_row

    @property
    def attention_op(self) -> int:
        """The end of the ops that write the keys and values of the text's tokens."""
        return self.embed_op


def previous_states(graph: ComputeGraph, states: Buffer) -> tuple[Region, Buffer]:
    """Add the lookup of each token's previous state; return the row numbers and the result. The buffer of states has as
    many extra rows as the batch has tokens."""
    states.floats.nbytes *= 2
    previous_rows, previous = graph.region(4 * graph.batch), graph.buffer(states.n)
    graph.op("draft_head.previous", GATHER_ROWS, graph.tokens, x=states, numbers=previous_rows, n=states.n, y=previous)
    return previous_rows, previous


def concatenate(graph: ComputeGraph, a: Buffer, b: Buffer) -> Buffer:
    """Concatenate two buffers row by row."""
    y = graph.buffer(a.n + b.n, a.rows)
    for first, x in ((0, a), (a.n, b)):
        graph.op(
            "draft_head.concatenate", COPY_SLICES, x.rows, chunks=(1, 8), x=x, x_first=0, x_step=x.n,
            heads=1, size=x.n,
            y=y, y_first=first, y_step=y.n,
        )  # fmt: skip
    return y


def select_draft_rows(graph: ComputeGraph, x: Buffer, most: int = 0) -> tuple[Region, Buffer]:
    """Add the selection of the tokens to draft for, at most one per sequence, or `most`. Few rows of logits need little
    memory."""
    most = most or graph.sequences
    draft_rows, rows = graph.region(4 * most), graph.buffer(x.n, graph.rows(most))
    graph.op("draft_head.select", GATHER_ROWS, rows.rows, x=x, numbers=draft_rows, n=x.n, y=rows)
    return draft_rows, rows


def find_attention_op(graph: ComputeGraph, block: object, first_op: int) -> int:
    """Return the number of a layer's attention op after `first_op`."""
    return next(number for number in range(first_op, len(graph.ops)) if graph.ops[number].name == f"{block}attention")


class DraftHeadStates(SequenceCache):
    """The hidden states of the last tokens of a sequence."""

    def __init__(self, head: DraftHead) -> None:
        self._head = head
        self._states = np.zeros((0, head.states.n), np.float32)
        self._end = 0  # the position after them
        self._batch_range = (0, 0)  # the first token in the batch, and the number of tokens

    def hidden_state(self, position: int) -> NDArray[np.float32] | None:
        distance = self._end - position
        result: NDArray[np.float32] | None = self._states[-distance] if 0 < distance <= len(self._states) else None
        return result

    def reset(self) -> None:
        self._states, self._end = self._states[:0], 0

    def fork(self) -> "DraftHeadStates":
        other = DraftHeadStates(self._head)
        other._states, other._end = self._states, self._end
        return other

    def reserve(self, first: int, count: int) -> None:
        """Do nothing: the states are not in pages."""

    def set_inputs(self, first: int, count: int, row: int = 0) -> None:
        states, previous_rows = self._head.rows(), self._head.previous_rows.view(np.int32)
        cached_row = len(states) // 2 + row
        previous = self.hidden_state(first - 1)
        states[cached_row] = 0 if previous is None else previous
        previous_rows[row] = cached_row
        previous_rows[row + 1 : row + count] = np.arange(row, row + count - 1)
        self._batch_range = row, count

    def commit(self, n_past: int) -> None:
        row, count = self._batch_range
        first = row + max(0, count - MAX_STORED_STATES)
        self._states, self._end = self._head.rows()[first : row + count].copy(), n_past

    def rewind_target(self, n: int) -> int:
        return n

    def rewind(self, n: int) -> None:
        """Do nothing: states are stored by position."""

    def checkpoint(self) -> None:
        """Do nothing."""

    def save(self) -> Sequence[Bytes]:
        return []

    def load(self, saved: Sequence[Bytes]) -> None:  # noqa: ARG002 (there is nothing to load)
        self.reset()
