"""Requests: what the scheduler runs for a sequence."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np

from localinfer.runtime.batch import Ids, Logits
from localinfer.runtime.batch_division import batch_end, bidirectional_span
from localinfer.runtime.decode_loop import DecodeLoop
from localinfer.runtime.sequence import Sequence

SHORT_REQUEST_TOKENS = 64  # requests up to this length go first: decode steps with their draft tokens
POLL_SECONDS = 0.1  # seconds between a waiting thread's checks of its condition


class RequestOwner(Protocol):
    """What the scheduler uses of an engine: one sequence, and the thread that waits for its requests."""

    sequence: Sequence
    is_idle: bool
    decode_loop: DecodeLoop | None
    awaited_step: int
    may_run_directly: bool

    def sleep(self) -> None:
        """Wait until the thread is woken, for a short time at most."""

    def wake(self) -> None:
        """Wake the thread. Repeated calls have no effect."""


class RequestState(Enum):
    """The state of a request.

    The scheduler submits a CREATED request, which is then WAITING. It is RUNNING as part of a batch, and after that
    either FINISHED or, if it has more tokens, WAITING again. A cancelled request goes from WAITING back to CREATED.
    """

    CREATED = "created"  # not submitted to the scheduler, or cancelled
    WAITING = "waiting"  # in the scheduler's queue
    RUNNING = "running"  # part of the current batch, and still in the queue
    FINISHED = "finished"  # all tokens are evaluated, or an error occurred


@dataclass(eq=False)
class Request:
    """Tokens to evaluate for a sequence, and the row numbers of those whose logits are needed.

    The logits are copied into `logits`, float32 (len(rows), n_vocab), or given to a decode loop.
    """

    engine: RequestOwner
    ids: Ids
    rows: Ids
    logits: Logits | None = None
    decode_loop: DecodeLoop | None = None
    step: int = 0  # number of the decode step
    next_request: "Request | None" = None  # the decode loop's next step, once this one is evaluated
    n_past: int = 0  # cached tokens before the request
    n_done: int = 0  # evaluated tokens
    n_copied_rows: int = 0  # rows of `logits` that are filled
    error: BaseException | None = None
    state: RequestState = RequestState.CREATED

    @property
    def sequence(self) -> Sequence:
        return self.engine.sequence

    @property
    def is_awaited(self) -> bool:
        """Whether the engine's thread waits for this request, and not for an earlier step."""
        return self.step == self.engine.awaited_step

    @property
    def is_superseded(self) -> bool:
        """Whether the request is finished and the decode loop's next step is submitted."""
        next_step = self.next_request if self.state is RequestState.FINISHED else None
        return next_step is not None and next_step.state is not RequestState.CREATED

    @property
    def is_short(self) -> bool:
        """Whether the request is short enough to go first."""
        return len(self.ids) <= SHORT_REQUEST_TOKENS

    @property
    def min_tokens(self) -> int:
        """The number of the next tokens that must be in one batch: all of a decode step, and the rows of an image that
        attend to each other."""
        if self.decode_loop:
            return len(self.ids)
        start, end = bidirectional_span(self.ids, self.n_done, self.sequence.media.table)
        return max(1, end - start)

    def next_ids(self, limit: int) -> Ids:
        """Return the next tokens to evaluate, at most `limit`, or none if `min_tokens` is larger."""
        if limit < self.min_tokens:
            return self.ids[:0]
        end = batch_end(self.ids, self.n_done, limit, self.sequence.media.table)
        return self.ids[self.n_done : end]

    def output_rows(self, count: int) -> Ids:
        """Return the row numbers within the next `count` tokens whose logits are needed."""
        if count == len(self.ids):
            return self.rows
        rows = self.rows - self.n_done
        return rows[(rows >= 0) & (rows < count)]

    def advance(self, count: int, logits: Logits) -> None:
        """Record that the next `count` tokens are evaluated.

        The logits of the requested rows among them go into `logits`, or to the decode loop, which may make the request
        for the next step.
        """
        self.n_done += count
        if self.logits is not None:
            self.logits[self.n_copied_rows : self.n_copied_rows + len(logits)] = logits
            self.n_copied_rows += len(logits)
        elif self.decode_loop and self.decode_loop.process_logits(logits):
            self.next_request = request_for_step(self.decode_loop, self.engine, self.step + 1)

    def end_batch(self) -> None:
        """Update the state after a batch that the request was part of."""
        is_complete = self.n_done == len(self.ids) or self.error is not None
        self.state = RequestState.FINISHED if is_complete else RequestState.WAITING


def request_for_step(decode_loop: DecodeLoop, engine: RequestOwner, step: int = 0) -> Request:
    """Return a request for the next step of a decode loop."""
    (ids, skip), n_past = decode_loop.next_tokens(), len(engine.sequence)
    if len(ids) > skip + 1:
        engine.sequence.begin_draft(skip + 1)
    rows = np.arange(skip, len(ids), dtype=np.int32)
    return Request(engine, np.array(ids, np.int32), rows, decode_loop=decode_loop, step=step, n_past=n_past)
