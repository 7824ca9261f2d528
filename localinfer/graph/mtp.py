"""The MTP head (multi-token prediction; Gloeckle et al., 2024; DeepSeek-V3, 2024), a draft head inside the model file.

From the hidden state of a token and the embedding of the next token, it predicts the token after that:

    previous = hidden state of the previous token, after the output norm; 0 for the first token
    y = eh_proj . [norm(embedding of the token), norm(previous)]
    one more layer, with its own keys and values, and its own norm
    logits from the output layer, or from the head's own

For draft tokens, whose hidden states are unknown, the head uses its own states instead. When the model evaluates
tokens, the head only computes their keys and values; the rest is computed when drafting.

Besides the KV cache, the head needs the hidden states of a sequence's last tokens (`DraftHeadStates`), because the next
batch needs the previous token's state. If it is missing, drafts are worse, but output does not change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.buffers import Buffer, Region, Rows
from localinfer.graph.cache.sequence_cache import Bytes, SequenceCache
from localinfer.graph.compute_graph import ComputeGraph
from localinfer.graph.graph_builder_base import Block, GraphBuilderBase
from localinfer.kernels.signatures import COPY_SLICES, GATHER_ROWS

KEPT_STATES = 64  # states kept per batch: enough to rewind rejected draft tokens

BlockFunction = Callable[[Block, Buffer], None]


@dataclass(frozen=True)
class DraftHead:
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

    def rows(self) -> NDArray[np.float32]:
        """Return the rows of `states` as an array."""
        result: NDArray[np.float32] = self.states.floats.view(np.float32).reshape(-1, self.states.n)
        return result


def build_mtp_head(g: GraphBuilderBase, x: Buffer, apply_block: BlockFunction, norm: str) -> DraftHead | None:
    """Build the MTP head after the output layer, if the file has one. `x` is the residual stream, `apply_block`
    computes a layer, `norm` is the output norm."""
    blk = Block(g.block_count, next(heads for heads in reversed(g.heads) if heads.count_kv))
    prefix = f"{blk}nextn."
    if not g.has(f"{prefix}eh_proj.weight"):
        return None
    graph, start_op = g.graph, len(g.graph.ops)
    states = g.norm(x, norm)
    previous_rows, previous = previous_states(graph, states)
    embed_op = len(graph.ops)
    with graph.reuse_buffers():
        name = f"{prefix}embed_tokens" if g.has(f"{prefix}embed_tokens.weight") else "token_embd"
        embedded = g.norm(g.lookup(name), f"{prefix}enorm")
        y = g.matmul(concatenate(graph, embedded, g.norm(previous, f"{prefix}hnorm")), f"{prefix}eh_proj", x.n)
        apply_block(blk, y)
        draft_rows, drafts = select_draft_rows(graph, y)
    norm_name, output_name = f"{prefix}shared_head_norm", f"{prefix}shared_head_head"
    state = g.norm(drafts, norm_name if g.has(f"{norm_name}.weight") else norm)
    logits = g.matmul(state, output_name if g.has(f"{output_name}.weight") else g.output, g.n_vocab)
    attention_op = find_attention_op(graph, blk, embed_op)
    return DraftHead(
        start_op, embed_op, attention_op, states, previous_rows, previous, draft_rows, state, logits, drafts.rows
    )


def previous_states(graph: ComputeGraph, states: Buffer) -> tuple[Region, Buffer]:
    """Add the lookup of each token's previous state; return the row numbers and the result. The buffer of states has as
    many extra rows as the batch has tokens."""
    states.floats.nbytes *= 2
    previous_rows, previous = graph.region(4 * graph.batch), graph.buffer(states.n)
    graph.op("draft_head.previous", GATHER_ROWS, graph.tokens, x=states, numbers=previous_rows, n=states.n, y=previous)
    return previous_rows, previous


def concatenate(graph: ComputeGraph, a: Buffer, b: Buffer) -> Buffer:
    """Concatenate two buffers row by row."""
    y = graph.buffer(a.n + b.n)
    for first, part in ((0, a), (a.n, b)):
        graph.op(
            "draft_head.concatenate", COPY_SLICES, part.rows, chunks=(1, 4), x=part, x_first=0, x_step=part.n,
            heads=1, size=part.n,
            y=y, y_first=first, y_step=y.n,
        )  # fmt: skip
    return y


def select_draft_rows(graph: ComputeGraph, x: Buffer) -> tuple[Region, Buffer]:
    """Add the selection of the tokens to draft for, at most one per sequence. Few rows of logits need little memory."""
    draft_rows, rows = graph.region(4 * graph.sequences), graph.buffer(x.n, graph.rows(graph.sequences))
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

    def place(self, first: int, count: int, at: int = 0) -> None:
        rows, numbers = self._head.rows(), self._head.previous_rows.view(np.int32)
        row = len(rows) // 2 + at
        before = self.hidden_state(first - 1)
        rows[row] = 0 if before is None else before
        numbers[at] = row
        numbers[at + 1 : at + count] = np.arange(at, at + count - 1)
        self._batch_range = at, count

    def commit(self, n_past: int) -> None:
        at, count = self._batch_range
        self._states, self._end = self._head.rows()[at + max(0, count - KEPT_STATES) : at + count].copy(), n_past

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
