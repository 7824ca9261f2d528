"""Scheduled engines: engines of single sequences whose requests a scheduler batches."""

import contextlib
import threading
from collections import abc
from functools import partial

import numpy as np

from localinfer.runtime.compiled_graph import Floats
from localinfer.runtime.engine import NO_ROWS, DecodeLoop, DraftHeadInput, Engine, Ids, Logits, Segment, Tokens
from localinfer.runtime.request import POLL_SECONDS, SHORT_REQUEST_TOKENS, Request, request_for_step
from localinfer.runtime.scheduler import Scheduler
from localinfer.runtime.thread_pool import OnOp, acquired_lock
from quant.jit.loader import Progress


class ScheduledEngine(Engine):
    """An engine for one sequence, used by one thread, whose requests the scheduler batches with others.

    While it `is_idle`, its pages may be evicted.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.is_idle = True
        self._scheduler, engine = scheduler, scheduler.engine
        self.file, self.compiled_graph, self.uses_ring_buffer = (
            engine.file,
            engine.compiled_graph,
            engine.uses_ring_buffer,
        )
        self.n_ctx, self.n_vocab, self.warnings = engine.n_ctx, engine.n_vocab, engine.warnings
        self.lock, self.page_table_lock, self.evict = threading.RLock(), engine.page_table_lock, engine.evict
        self.sequence = engine.new_sequence()
        self._logits = np.empty((0, self.n_vocab), np.float32)
        self.decode_loop: DecodeLoop | None = None  # the current one
        self._next_request: Request | None = None  # its next step
        self.awaited_step = 0  # number of the step that the thread requested last
        self.may_run_directly = False  # whether the thread may evaluate by itself
        self._wake_lock = acquired_lock()  # released to wake the thread
        scheduler.register(self)

    def batches(self, ids: Ids) -> list[Ids]:
        return [ids] if len(ids) else []  # the scheduler splits them

    def _evaluate_batch(self, ids: Ids, rows: Ids = NO_ROWS, on_op: OnOp | None = None) -> Logits:
        self.is_idle = False
        self._cancel_decode_loop()
        logits = self._logits_rows(len(rows))
        if (
            on_op is None
            and len(ids) <= min(SHORT_REQUEST_TOKENS, self.graph.batch)
            and self._scheduler.try_begin_direct(self.sequence)
        ):
            self._compute_directly(ids, rows, partial(np.copyto, logits))
        else:
            self._scheduler.run(Request(self, ids, rows, logits), on_op)
        return logits

    def run_step(self, decode_loop: DecodeLoop) -> None:
        if not self.sequence.can_rewind:  # a step that is started ahead could not be discarded
            super().run_step(decode_loop)
            return
        self.is_idle = False
        with self.lock:
            if self.decode_loop is not decode_loop:
                self._cancel_decode_loop()
                self.decode_loop = decode_loop
            request = self._next_request or request_for_step(decode_loop, self)
            if request.is_superseded:
                self.awaited_step, self._next_request = request.step, request.next_step
                return
            if not request.is_submitted and self._scheduler.try_begin_direct(self.sequence):
                self._next_request = None
                self._compute_directly(request.ids, request.rows, decode_loop.process_logits)
                return
            self._next_request = request
            try:
                self._scheduler.run(request)
            finally:
                self._next_request = request.next_step if request.is_finished else request

    def sleep(self) -> None:
        """Wait until the thread is woken, at most POLL_SECONDS."""
        self._wake_lock.acquire(timeout=POLL_SECONDS)

    def wake(self) -> None:
        """Wake the thread. Repeated calls have no effect."""
        with contextlib.suppress(RuntimeError):  # already released
            self._wake_lock.release()

    def _compute_directly(self, ids: Ids, rows: Ids, process: abc.Callable[[Logits], object]) -> None:
        """Evaluate a few tokens in this thread after `try_begin_direct`, and call `process` with the logits."""
        engine = self._scheduler.engine
        try:
            with engine.lock:  # the next evaluation overwrites the logits
                process(engine.evaluate_segments([Segment(self.sequence, ids)], rows))
        finally:
            self._scheduler.end_direct()

    def _cancel_decode_loop(self) -> None:
        """Discard the step that was started ahead and is not requested any more."""
        self._scheduler.wait_for_direct(self.sequence)
        request, self._next_request, self.decode_loop = self._next_request, None, None
        if request is not None:
            try:
                self._scheduler.cancel(self)
            finally:
                if request.n_done:
                    self.rewind(request.n_past)

    def _logits_rows(self, rows: int) -> Logits:
        """Return a buffer for `rows` rows of logits.

        The same buffer is used each time: buffers that another thread frees would fragment the memory allocator's
        arenas.
        """
        if rows > len(self._logits):
            self._logits = np.empty((rows, self.n_vocab), np.float32)
        return self._logits[:rows]

    def logits_in_batches(self, tokens: Tokens, skip: int = 0) -> abc.Iterator[Logits]:
        self.require_predictions()
        ids, outputs = self.validate_tokens(tokens), self.graph.outputs
        for first in range(0, len(ids), outputs):
            part = ids[first : first + outputs]
            logits = self._evaluate_batch(part, np.arange(max(skip - first, 0), len(part), dtype=np.int32))
            if len(logits):
                yield logits

    def evaluate_draft_head(
        self, id: int, position: int, previous_state: Floats | None = None
    ) -> tuple[Logits, Floats]:
        return self._scheduler.evaluate_draft_head(DraftHeadInput(self.sequence, id, position, previous_state))

    def reuse_prefix(self, tokens: abc.Sequence[int], max_tokens: int, progress: Progress | None = None) -> int:
        self._cancel_decode_loop()
        return self._scheduler.reuse_prefix(self, tokens, max_tokens, progress)

    def rewind(self, n: int) -> int:
        with self.page_table_lock:
            return super().rewind(n)

    def checkpoint(self) -> None:
        with self.page_table_lock:
            super().checkpoint()

    def reset(self) -> None:
        self._cancel_decode_loop()
        with self.page_table_lock:
            super().reset()

    def mark_idle(self) -> None:
        """Announce that no further tokens are evaluated soon. An idle sequence does not delay a batch, and may be
        evicted."""
        if self._scheduler.is_computing_thread():  # any thread may collect an abandoned run as garbage
            return  # it cannot wait for its own batch; the next use cancels the decode loop
        try:
            self._cancel_decode_loop()
        finally:
            self._scheduler.pause(self, is_idle=True)

    def pause(self) -> None:
        self._scheduler.pause(self)

    def require_open(self) -> None:
        self._scheduler.engine.require_open()

    def close(self) -> None:
        """Discard all cached tokens."""
        self.mark_idle()
        self.reset()
