"""Scheduled engines: engines whose requests a scheduler batches with those of others."""

import contextlib
import threading
from collections import abc
from functools import partial

import numpy as np

from localinfer.errors import UsageError
from localinfer.runtime.batch import NO_ROWS, Ids, Logits, Segment, Tokens
from localinfer.runtime.batch_division import split_batches
from localinfer.runtime.decode_loop import DecodeLoop
from localinfer.runtime.model_runner import MAX_POSITION
from localinfer.runtime.modifiers import Modifiers
from localinfer.runtime.scheduling.request import (
    POLL_SECONDS,
    SHORT_REQUEST_TOKENS,
    Request,
    RequestState,
    request_for_step,
)
from localinfer.runtime.scheduling.scheduler import Scheduler
from localinfer.runtime.sequence_engine import SequenceEngine
from localinfer.runtime.thread_pool import OnOp, acquired_lock
from localinfer.runtime.token_checks import checked_tokens
from quant.jit.loader import Progress


class ScheduledEngine(SequenceEngine):
    """An engine for one sequence, used by one thread, whose requests the scheduler batches with others.

    While it `is_idle`, its pages may be evicted.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler.runner, threading.RLock(), scheduler.draft_head)
        self.is_idle = True
        self._scheduler = scheduler
        self._logits = np.empty((0, self.n_vocab), np.float32)
        self.decode_loop: DecodeLoop | None = None  # the current one
        self._next_request: Request | None = None  # its next step
        self.awaited_step = 0  # number of the step that the thread requested last
        self.may_run_directly = False  # whether the thread may evaluate by itself
        self._wake_lock = acquired_lock()  # released to wake the thread
        scheduler.register(self)

    @property
    def max_batch(self) -> int:
        return MAX_POSITION  # the scheduler splits prompts

    def run_step(self, decode_loop: DecodeLoop) -> None:
        """Run one step of a decode loop, and start the next one before it is requested.

        The scheduler thread may call the methods of the decode loop.
        """
        if not self.sequence.can_rewind:  # a step that is started early could not be discarded
            super().run_step(decode_loop)
            return
        self.is_idle = False
        with self.lock:
            if self.decode_loop is not decode_loop:
                self._cancel_decode_loop()
                self.decode_loop = decode_loop
            request = self._next_request or request_for_step(decode_loop, self)
            if request.is_superseded:
                self.awaited_step, self._next_request = request.step, request.next_request
                return
            if request.state is RequestState.CREATED and self._scheduler.try_begin_direct(self.sequence):
                self._next_request = None
                self._compute_directly(request.ids, request.rows, decode_loop.process_logits)
                return
            self._next_request = request
            try:
                self._scheduler.run(request)
            finally:
                self._next_request = request.next_request if request.state is RequestState.FINISHED else request

    def logits_in_batches(self, tokens: Tokens, skip: int = 0) -> abc.Iterator[Logits]:
        self.compiled_graph.require_next_tokens()
        ids = checked_tokens(tokens, self.runner, self.sequence)
        for batch in split_batches(ids, self.graph.outputs, self.runner.media_table):
            if len(batch) - skip > self.graph.outputs:
                what = f"rows of one image; at most {self.graph.outputs} fit in memory"
                raise UsageError(f"logits: they are requested after {len(batch) - max(skip, 0)} {what}")
            logits = self._evaluate_batch(batch, np.arange(min(skip, len(batch)), len(batch), dtype=np.int32))
            if len(logits):
                yield logits
            skip = max(0, skip - len(batch))

    def _evaluate_batch(self, ids: Ids, rows: Ids = NO_ROWS, on_op: OnOp | None = None) -> Logits:
        self.is_idle = False
        self._cancel_decode_loop()
        logits = self._logits_rows(len(rows))
        if (
            on_op is None
            and len(ids) <= min(SHORT_REQUEST_TOKENS, self.compiled_graph.max_batch)
            and self._scheduler.try_begin_direct(self.sequence)
        ):
            self._compute_directly(ids, rows, partial(np.copyto, logits))
        else:
            self._scheduler.run(Request(self, ids, rows, logits), on_op)
        return logits

    def _compute_directly(self, ids: Ids, rows: Ids, process: abc.Callable[[Logits], object]) -> None:
        """Evaluate a few tokens in this thread after `try_begin_direct`, and call `process` with the logits."""
        try:
            with self.runner.lock:  # the next evaluation overwrites the logits
                process(self.runner.evaluate_segments([Segment(self.sequence, ids)], rows))
        finally:
            self._scheduler.end_direct()

    def _logits_rows(self, count: int) -> Logits:
        """Return a buffer for `count` rows of logits.

        The same buffer is used each time: buffers that another thread frees would fragment the memory allocator's
        arenas.
        """
        if count > len(self._logits):
            self._logits = np.empty((count, self.n_vocab), np.float32)
        return self._logits[:count]

    def _cancel_decode_loop(self) -> None:
        """Discard the step that was started early and is not requested any more."""
        self._scheduler.wait_for_direct(self.sequence)
        request, self._next_request, self.decode_loop = self._next_request, None, None
        if request is not None:
            try:
                self._scheduler.cancel(self)
            finally:
                if request.n_done:
                    self.rewind(request.n_past)

    # --- the thread ---

    def sleep(self) -> None:
        """Wait until the thread is woken, at most POLL_SECONDS."""
        self._wake_lock.acquire(timeout=POLL_SECONDS)

    def wake(self) -> None:
        """Wake the thread. Repeated calls have no effect."""
        with contextlib.suppress(RuntimeError):  # already released
            self._wake_lock.release()

    def settle(self) -> bool:
        if self._scheduler.is_computing_thread():  # any thread may collect an abandoned run as garbage
            return False  # it cannot wait for its own batch
        self._cancel_decode_loop()
        return True

    def pause(self) -> None:
        self._scheduler.pause(self)

    def mark_idle(self) -> None:
        """Announce that no further tokens are evaluated soon. An idle sequence does not delay a batch, and may be
        evicted."""
        if self._scheduler.is_computing_thread():
            return  # as above; the next use cancels the decode loop
        try:
            self._cancel_decode_loop()
        finally:
            self._scheduler.pause(self, is_idle=True)

    # --- the cache ---

    def reuse_prefix(self, tokens: abc.Sequence[int], max_tokens: int, progress: Progress | None = None) -> int:
        self._cancel_decode_loop()
        return self._scheduler.reuse_prefix(self, tokens, max_tokens, progress)

    def _replace_sequence(self, modifiers: Modifiers) -> None:
        self.settle()
        with self.lock:
            self._scheduler.replace_sequence(self, modifiers)

    def reset(self) -> None:
        self._cancel_decode_loop()
        super().reset()

    def close(self) -> None:
        """Discard all cached tokens. The model stays open."""
        self.mark_idle()
        self.reset()
