"""A head that looks further ahead: from what a token has become behind all blocks, and the token that came next, it
predicts the one behind that (multi-token prediction; Gloeckle et al., 2024; DeepSeek-V3, 2024).

    before = the state of the token before, normalised as for the output layer; 0 in front of the first one
    y = eh_proj . [norm(embedding of the token), norm(before)]
    one more block of the model, with keys and values of its own, and its own norm: the state of a token not computed
    logits by the output layer, or by one of its own

It is given the states that it makes itself in place of those of tokens that are only guessed. When the model computes
tokens, the head takes in their keys; what comes behind these is only computed when it shall guess.

What it has to know of a sequence beside keys is the state of its last tokens (`Behind`): that of the one before is the
first thing that is asked of the next batch. Where it is not there, a guess is worse, and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.ops.calls import PICK, PUT_PART
from localinfer.plan.basics import Basics, Block
from localinfer.plan.buffers import Buffer, Region, Rows
from localinfer.plan.memory.memory import Bytes, Memory
from localinfer.plan.plan import Plan

HELD = 64  # states of the last tokens of a batch: of these some may have been guesses

Through = Callable[[Block, Buffer], None]


@dataclass(frozen=True)
class Ahead:
    """Its ops begin at `start`: first they line up states, at `keys` they begin with the token, at `look` the keys are
    taken in, and what is computed for a guess follows."""

    start: int
    keys: int
    look: int
    states: Buffer  # of all tokens of a batch; in the rows behind these, what was before the first one of each segment
    numbers: Region  # int32 [batch]: in which row of these what was before each token is
    before: Buffer  # what was there before each token
    picked: Region  # int32 [sequences]: the tokens for which it guesses
    state: Buffer  # what these have become here
    logits: Buffer  # of these
    guessing: Rows  # how many they are: one of each sequence at most
    ids: NDArray[np.int64] | None = None  # the tokens that logits are of, where these are not all

    def rows(self) -> NDArray[np.float32]:
        """The rows of `states`."""
        found: NDArray[np.float32] = self.states.floats.view(np.float32).reshape(-1, self.states.n)
        return found


def record_ahead(r: Basics, x: Buffer, through: Through, norm: str) -> Ahead | None:
    """Record the head behind the output layer, if the file has one: x is the residual stream, which goes `through` its
    block as it goes through all others."""
    blk = Block(r.block_count, next(heads for heads in reversed(r.heads) if heads.count_kv))
    own = f"{blk}nextn."
    if not r.has(f"{own}eh_proj.weight"):
        return None
    plan, start = r.plan, len(r.plan.ops)
    states = r.norm(x, norm)
    numbers, before = line_up(plan, states)
    keys = len(plan.ops)
    with plan.recycling():
        name = f"{own}embed_tokens" if r.has(f"{own}embed_tokens.weight") else "token_embd"
        embedded = r.norm(r.look_up(name), f"{own}enorm")
        y = r.matmul(side_by_side(plan, embedded, r.norm(before, f"{own}hnorm")), f"{own}eh_proj", x.n)
        through(blk, y)
        picked, guessing = rows_of_guesses(plan, y)
    own_norm, own_output = f"{own}shared_head_norm", f"{own}shared_head_head"
    state = r.norm(guessing, own_norm if r.has(f"{own_norm}.weight") else norm)
    logits = r.matmul(state, own_output if r.has(f"{own_output}.weight") else r.output, r.n_vocab)
    look = attention_of(plan, blk, keys)
    return Ahead(start, keys, look, states, numbers, before, picked, state, logits, guessing.rows)


def line_up(plan: Plan, states: Buffer) -> tuple[Region, Buffer]:
    """In which row of the states what was before each token is, and a copy of that. There is room for as many rows
    behind those of the batch."""
    states.floats.nbytes *= 2
    numbers, before = plan.region(4 * plan.batch), plan.buffer(states.n)
    plan.op("ahead.before", PICK, plan.tokens, x=states, numbers=numbers, n=states.n, y=before)
    return numbers, before


def side_by_side(plan: Plan, a: Buffer, b: Buffer) -> Buffer:
    """The values of both, a row behind the other's."""
    both = plan.buffer(a.n + b.n)
    for first, part in ((0, a), (a.n, b)):
        plan.op(
            "ahead.part", PUT_PART, part.rows, rounds=(1, 4), x=part, x_first=0, x_step=part.n, heads=1, size=part.n,
            y=both, y_first=first, y_step=both.n,
        )  # fmt: skip
    return both


def rows_of_guesses(plan: Plan, x: Buffer) -> tuple[Region, Buffer]:
    """The numbers of the tokens for which there are guesses, one of each sequence at most, and the rows of these: few
    rows of logits take little memory."""
    picked, rows = plan.region(4 * plan.sequences), plan.buffer(x.n, plan.rows(plan.sequences))
    plan.op("ahead.pick", PICK, rows.rows, x=x, numbers=picked, n=x.n, y=rows)
    return picked, rows


def attention_of(plan: Plan, block: object, keys: int) -> int:
    """The op, behind the one that is told, with which a block begins to look back."""
    return next(number for number in range(keys, len(plan.ops)) if plan.ops[number].name == f"{block}attention")


class Behind(Memory):
    """The states of the last tokens of one sequence."""

    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead
        self._states = np.zeros((0, ahead.states.n), np.float32)
        self._end = 0  # the position behind them
        self._placed = (0, 0)  # where in the batch the tokens are that are computed, and how many

    def state(self, position: int) -> NDArray[np.float32] | None:
        back = self._end - position
        found: NDArray[np.float32] | None = self._states[-back] if 0 < back <= len(self._states) else None
        return found

    def reset(self) -> None:
        self._states, self._end = self._states[:0], 0

    def fork(self) -> "Behind":
        other = Behind(self._ahead)
        other._states, other._end = self._states, self._end
        return other

    def reserve(self, first: int, count: int) -> None:
        """Nothing to do: it is not in pages."""

    def place(self, first: int, count: int, at: int = 0) -> None:
        rows, numbers = self._ahead.rows(), self._ahead.numbers.view(np.int32)
        row = len(rows) // 2 + at
        before = self.state(first - 1)
        rows[row] = 0 if before is None else before
        numbers[at] = row
        numbers[at + 1 : at + count] = np.arange(at, at + count - 1)
        self._placed = at, count

    def commit(self, n_past: int) -> None:
        at, count = self._placed
        self._states, self._end = self._ahead.rows()[at + max(0, count - HELD) : at + count].copy(), n_past

    def reach(self, n: int) -> int:
        return n

    def rewind(self, n: int) -> None:
        """Nothing to do: states know their positions."""

    def keep(self) -> None:
        """Nothing to do."""

    def save(self) -> Sequence[Bytes]:
        return []

    def load(self, saved: Sequence[Bytes]) -> None:  # noqa: ARG002 (nothing is saved)
        self.reset()
