"""The scheduler: continuous batching of requests from several sequences, with prefix caching.

    scheduler = Scheduler(engine)
    sequence = ScheduledEngine(scheduler)  # an engine for a thread of its own; at most `graph.sequences` of them
    sequence.evaluate(tokens)              # waits until the tokens are evaluated, batched with other requests
    sequence.run_step(decode_loop)         # the same for a decode step; the next step starts before it is requested
    sequence.mark_idle()                   # batches no longer wait for the sequence

A scheduler thread, which lives as long as there are requests, runs one batch after the other. Before a batch it waits
for the sequences of the last batch as long as new requests of theirs keep arriving. Short requests go first, as decode
steps are short. The rest of a batch is filled with slices of prompts (chunked prefill), so that a long prompt does not
stall the decoding of others.

The steps of a `DecodeLoop` follow each other without a wait: the scheduler thread lets the loop process the logits, and
puts its next step into the next batch at once. The thread that called `run_step` is woken while that batch runs, and
handles its token meanwhile. With many sequences only a few threads are woken in each batch, in turns, since each of
them takes CPU time from the thread pool. They lag some steps behind, and then catch up one by one.

A decode step of the only active sequence runs in the calling thread, without the scheduler thread: the two thread
switches would take longer than what could be overlapped.

A prefix that any sequence has cached is not evaluated again: sequences share its pages. If another sequence is already
evaluating the same prefix, the request waits for it and then shares its pages. When no page is free, the least recently
used cached prefix is evicted, then the sequence of an idle engine.
"""

import atexit
import contextlib
import threading
import time
from collections import abc, deque
from dataclasses import dataclass
from itertools import accumulate

from localinfer.errors import ContextOverflowError, LocalInferError, NotEnoughMemoryError
from localinfer.runtime.compiled_graph import Floats
from localinfer.runtime.engine import (
    DraftHeadInput,
    Engine,
    Logits,
    Segment,
    common_prefix_length,
    concatenated,
)
from localinfer.runtime.prefix_cache import MIN_SHARED_TOKENS, PrefixCache
from localinfer.runtime.request import POLL_SECONDS, BatchSlice, Request, RequestOwner
from localinfer.runtime.sequence import Sequence
from localinfer.runtime.thread_pool import OnOp
from quant.jit.loader import Progress

PREFILL_SLICE_TOKENS = 64  # prompt tokens in a batch with decode steps; they take some tenths of a second
ARRIVAL_TIMEOUT = 0.005  # seconds that a batch waits for the next request of the last batch's sequences
IDLE_SECONDS = 1.0  # the scheduler thread ends after this long without requests
MIN_WOKEN = 4  # threads to wake in each batch; a quarter of them if there are more than 16
RESERVATION_SECONDS = 2.0  # others wait this long for an announced prompt to be submitted


@dataclass(eq=False)
class DraftHeadRequest:
    """A pending evaluation of the draft head. `result` is its logits and hidden state, or the error."""

    input: DraftHeadInput
    result: tuple[Logits, Floats] | Exception | None = None


@dataclass(frozen=True)
class PrefixReservation:
    """A prompt whose prefix a sequence has just reused, and whose rest it is about to submit."""

    tokens: abc.Sequence[int]
    expires: float  # `time.monotonic()` in seconds

    @property
    def is_valid(self) -> bool:
        """Whether the reservation has not expired."""
        return time.monotonic() < self.expires


class Scheduler:
    """Schedules the requests of all sequences of an engine into batches."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._engines: list[RequestOwner] = []
        # Notified after each batch, and when a sequence is no longer expected.
        self._condition = threading.Condition(engine.page_table_lock)
        self._waiting: list[Request] = []
        self._draft_head_requests: deque[DraftHeadRequest] = deque()
        self._expected: set[Sequence] = set()  # of the last batch, without a new request yet
        self._running: list[Request] = []  # the batch that is being computed
        # Engines with a finished step and a submitted next one, longest waiting first.
        self._wake_queue: deque[RequestOwner] = deque()
        self._to_wake: deque[RequestOwner] = deque()  # to be woken once the next batch runs
        self._woken: set[RequestOwner] = set()  # woken, without a new request yet
        self._thread: threading.Thread | None = None  # the scheduler thread, while it lives
        self._direct_sequence: Sequence | None = None  # evaluated directly by its own thread
        self._direct_thread: threading.Thread | None = None  # the thread that evaluates it
        self._is_shut_down = False  # the process is about to exit
        self._reservations: dict[Sequence, PrefixReservation] = {}
        self._prefix_cache = PrefixCache(engine.n_ctx)
        engine.evict = self._evict
        engine.compiled_graph.add_idle_work(self._to_wake, self._wake_engines)

    def register(self, engine: RequestOwner) -> None:
        """Add an engine, whose cached prefixes are then shared."""
        self._engines.append(engine)

    # --- running requests ---

    def run(self, request: Request, on_op: OnOp | None = None) -> None:
        """Run a request and wait until it is finished. If `on_op` raises, the tokens evaluated so far stay in the
        sequence."""
        engine = request.engine
        try:
            with self._condition:
                engine.awaited_step, engine.may_run_directly = request.step, runs_uninterrupted()
                if not request.is_submitted:
                    self._submit(request)
                elif (
                    request.next_step
                    and not request.next_step.is_submitted
                    and not request.is_running
                    and self._runs_ahead(engine)
                ):
                    self._submit(request.next_step)
                request.is_awaited = request.is_running or not request.is_finished
                self._woken.discard(engine)
                is_last = request.is_running and not self._woken
            if is_last:
                self.engine.compiled_graph.run_idle_work()
            while request.is_running or not request.is_finished:
                if on_op:
                    on_op(len(self.engine.graph.ops) * request.n_done // len(request.ids))
                engine.sleep()
        except BaseException:
            self.cancel(engine)
            raise
        if request.error:
            raise request.error

    def try_begin_direct(self, sequence: Sequence) -> bool:
        """Reserve the engine for direct evaluation by this thread, unless other sequences have requests. Return whether
        this succeeded.

        The caller must then call `end_direct`; requests that arrive meanwhile wait for that.
        """
        with self._condition:
            if self._is_shut_down or self._has_other_work(sequence) or not runs_uninterrupted():
                return False
            self._direct_sequence, self._direct_thread = sequence, threading.current_thread()
            self._reservations.pop(sequence, None)
            self._expected.discard(sequence)
            return True

    def end_direct(self) -> None:
        """End a direct evaluation. Requests that arrived meanwhile wait for the sequence's next step."""
        with self._condition:
            if self._waiting and self._direct_sequence:
                self._expected.add(self._direct_sequence)
                self._condition.notify_all()  # only here: waking the scheduler thread costs a fraction of a step
            self._direct_sequence = self._direct_thread = None

    def wait_for_direct(self, sequence: Sequence) -> None:
        """Wait until no other thread evaluates the sequence directly."""
        with self._condition:
            while self._direct_sequence is sequence and self._direct_thread and self._direct_thread.is_alive():
                self._condition.wait(POLL_SECONDS)

    def _has_other_work(self, sequence: Sequence) -> bool:
        """Return whether other sequences run, have requests, or are expected to have some soon."""
        return bool(self._running or self._waiting or self._direct_sequence or self._expected - {sequence})

    def _runs_ahead(self, engine: RequestOwner) -> bool:
        """Return whether a decode loop's next step starts before it is requested."""
        return not engine.may_run_directly or self._has_other_work(engine.sequence)

    def cancel(self, engine: RequestOwner) -> None:
        """Withdraw the engine's requests.

        A running batch is completed first, and a KeyboardInterrupt is delayed until then, as the batch changes the
        sequence.
        """
        interrupt: KeyboardInterrupt | None = None
        with self._condition:
            while self._is_thread_alive() and any(request.engine is engine for request in self._running):
                try:
                    self._condition.wait(POLL_SECONDS)
                except KeyboardInterrupt as error:
                    interrupt = error
            for request in [request for request in self._waiting if request.engine is engine]:
                self._waiting.remove(request)
                request.is_submitted = False
        if interrupt:
            raise interrupt

    def evaluate_draft_head(self, input: DraftHeadInput) -> tuple[Logits, Floats]:
        """Evaluate the draft head; see `Engine.evaluate_draft_head`. Concurrent calls share a batch."""
        request = DraftHeadRequest(input)
        self._draft_head_requests.append(request)
        try:
            with self.engine.lock:  # between two batches
                while request.result is None:
                    self._run_draft_head_batch(request)
        except BaseException:  # the sequence may change: no other thread may evaluate it
            with contextlib.suppress(ValueError):
                self._draft_head_requests.remove(request)
            raise
        if isinstance(request.result, Exception):
            raise request.result
        return request.result

    def _run_draft_head_batch(self, own: "DraftHeadRequest") -> None:
        """Evaluate a batch of pending draft head requests. After an interrupt, requests of other threads are queued
        again."""
        batch = [
            self._draft_head_requests.popleft()
            for _ in range(min(len(self._draft_head_requests), self.engine.graph.sequences))
        ]
        try:
            logits, states = self.engine.evaluate_draft_head_batch([each.input for each in batch])
            for number, each in enumerate(batch):
                each.result = logits[number].copy(), states[number]
        except Exception as error:
            for each in batch:
                each.result = error
        finally:
            self._draft_head_requests.extend(each for each in batch if each.result is None and each is not own)

    def pause(self, engine: RequestOwner, *, is_idle: bool = False) -> None:
        """Stop waiting for the engine's next request. The pages of an idle engine may be evicted."""
        with self._condition:
            engine.is_idle = engine.is_idle or is_idle
            self._reservations.pop(engine.sequence, None)
            self._expected.discard(engine.sequence)
            self._woken.discard(engine)
            self._condition.notify_all()

    def _submit(self, request: Request) -> None:
        """Queue a request for the next batches."""
        if self._thread is None:
            self._thread = self._start_thread()
        request.is_submitted = True
        self._waiting.append(request)
        self._reservations.pop(request.sequence, None)
        self._mark_arrived(request.sequence)

    def _mark_arrived(self, sequence: Sequence) -> None:
        """Stop waiting for a sequence."""
        self._expected.discard(sequence)
        if not self._expected:
            self._condition.notify_all()

    def _start_thread(self) -> threading.Thread:
        """Start the scheduler thread.

        Python stops daemon threads in the midst of a batch when the process exits, and a thread that waits for that
        batch would wait forever. `shutdown` ends it before.
        """
        if self._is_shut_down:
            raise LocalInferError("the process is about to exit: no more tokens can be evaluated")
        thread = threading.Thread(target=self._run_loop, daemon=True, name="localinfer-scheduler")
        try:
            thread.start()
        except RuntimeError as error:  # no memory for a stack, or too many threads
            raise NotEnoughMemoryError(f"scheduler thread: {error}") from None
        atexit.register(self.shutdown)
        return thread

    def _is_thread_alive(self) -> bool:
        """Return whether the scheduler thread runs. In a forked process it does not."""
        return self._thread is not None and self._thread.is_alive()

    def is_computing_thread(self) -> bool:
        """Return whether the current thread evaluates batches."""
        return threading.current_thread() in (self._thread, self._direct_thread)

    def shutdown(self) -> None:
        """End the scheduler thread after its current batch, before the process exits."""
        if (thread := self._thread) is not None and thread.is_alive():
            with self._condition:
                self._is_shut_down = True
                self._condition.notify_all()
            thread.join()

    def _run_loop(self) -> None:
        """Run batches until there have been no requests for a while."""
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: (self._waiting and not self._direct_sequence) or self._is_shut_down, IDLE_SECONDS
                )
                if self._is_shut_down or not self._waiting:
                    self._thread = None
                    atexit.unregister(self.shutdown)
                    return
            self._wait_for_expected()
            self._run_next_batch()

    def _wait_for_expected(self) -> None:
        """Wait for new requests of the last batch's sequences as long as they keep arriving."""
        with self._condition:
            while missing := len(self._expected):
                self._condition.wait_for(lambda: not self._expected, ARRIVAL_TIMEOUT)
                if len(self._expected) == missing:
                    self._expected.clear()

    def _run_next_batch(self) -> None:
        """Run one batch of queued requests."""
        with self._condition:
            batch = self._select_batch()
            self._running = [part.request for part in batch]
            for request in self._running:
                request.is_running = True
        try:
            if batch:  # empty if all requests were cancelled
                self._run_batch(batch)
        except BaseException as error:  # waiting threads raise it; the scheduler thread continues
            for request in self._running:
                request.error = error
        finally:
            self._finish_batch()

    def _run_batch(self, batch: abc.Sequence[BatchSlice]) -> None:
        """Evaluate a batch. If memory or context runs out, evaluate each request alone so that only the affected ones
        fail."""
        try:
            self._evaluate_slices(batch)
        except (ContextOverflowError, NotEnoughMemoryError):
            if len(batch) == 1:
                raise
            for part in batch:
                try:
                    self._evaluate_slices([part])
                except LocalInferError as error:
                    part.request.error = error

    def _evaluate_slices(self, batch: abc.Sequence[BatchSlice]) -> None:
        """Evaluate a batch and hand each request its logits."""
        before = accumulate((len(part.ids) for part in batch), initial=0)
        rows = concatenated([part.rows + first for part, first in zip(batch, before, strict=False)])
        with self.engine.lock:  # the next evaluation overwrites the logits
            logits = self.engine.evaluate_segments([Segment(part.request.sequence, part.ids) for part in batch], rows)
            before = accumulate((len(part.rows) for part in batch), initial=0)
            for part, first in zip(batch, before, strict=False):
                try:
                    part.request.advance(len(part.ids), logits[first : first + len(part.rows)])
                except BaseException as error:  # raised by its decode loop: other requests continue
                    part.request.error = error

    def _finish_batch(self) -> None:
        """Update the queue after a batch: submit the next steps of decode loops, and wake the threads of finished
        requests.

        Some threads are woken when the next batch runs, all at once if the next batch waits for one of them.
        """
        with self._condition:
            batch, self._running = self._running, []
            self._waiting = [request for request in self._waiting if not request.is_finished]
            finished = [request for request in batch if request.is_finished]
            has_others = len(finished) + len(self._waiting) > 1
            max_lead = min(len(finished) // MIN_WOKEN, MIN_WOKEN)
            for request in batch:
                request.is_running = False
            for request in finished:
                engine, next_step = request.engine, request.next_step
                is_close_behind = (
                    request.decode_loop is engine.decode_loop and request.step - engine.awaited_step <= max_lead
                )
                if next_step and is_close_behind and (has_others or not engine.may_run_directly):
                    self._submit(next_step)
                elif next_step or not request.decode_loop:
                    self._expected.add(engine.sequence)
                if request.is_awaited:
                    (self._wake_queue if next_step else self._to_wake).append(engine)
            at_once = bool(self._expected) or not self._waiting
            n_woken = len(self._wake_queue) if at_once else max(MIN_WOKEN, -(-len(self._wake_queue) // MIN_WOKEN))
            self._to_wake += [self._wake_queue.popleft() for _ in range(min(n_woken, len(self._wake_queue)))]
            if at_once:
                self._wake_engines()
            self._condition.notify_all()

    def _wake_engines(self) -> None:
        """Wake the threads of the engines in `_to_wake`."""
        due = list[RequestOwner]()
        with contextlib.suppress(IndexError):  # empty: two threads may do this at once
            while True:
                due.append(self._to_wake.popleft())
        self._woken.update(due)
        for engine in due:
            engine.wake()

    def _select_batch(self) -> list[BatchSlice]:
        """Return the next batch: short requests first, then in order of arrival."""
        graph, chosen = self.engine.graph, list[BatchSlice]()
        short = [request for request in self._waiting if request.is_short]
        long = [request for request in self._waiting if not request.is_short]
        free_tokens, outputs = graph.batch, graph.outputs
        for request in [*short, *long]:
            if len(chosen) == graph.sequences:
                break
            limit = min(free_tokens, PREFILL_SLICE_TOKENS) if short and not request.is_short else free_tokens
            ids = request.next_ids(limit)
            rows = request.output_rows(len(ids))
            if len(ids) and len(rows) <= outputs:
                chosen.append(BatchSlice(request, ids, rows))
                free_tokens, outputs = free_tokens - len(ids), outputs - len(rows)
        return chosen

    # --- prefix caching ---

    def reuse_prefix(
        self, engine: RequestOwner, tokens: abc.Sequence[int], max_tokens: int, progress: Progress | None
    ) -> int:
        """Give an engine the longest cached prefix of `tokens`, at most `max_tokens` long, and return its length.

        The prefix comes from the engine's own sequence, another engine's, or the prefix cache. If another sequence is
        about to evaluate a longer prefix, wait for that.
        """
        with self._condition:
            engine.is_idle = False
            self._reservations.pop(engine.sequence, None)
            self._mark_arrived(engine.sequence)
            source, n_reused = self._best_source(engine, tokens, max_tokens)
            while pending := self._pending_source(engine, tokens[:max_tokens], n_reused + MIN_SHARED_TOKENS):
                sequence, n = pending
                while len(sequence) < n and self._pending_tokens(sequence):
                    self._condition.wait(POLL_SECONDS)
                    if progress:
                        progress("prefill", 0, len(tokens))
                source, n_reused = self._best_source(engine, tokens, max_tokens)
            before = engine.sequence
            if source is not before or len(before) >= n_reused + MIN_SHARED_TOKENS:
                engine.sequence = source.fork()
                self._prefix_cache.add(before)
            self._prefix_cache.mark_used(source, n_reused)
            self._reservations[engine.sequence] = PrefixReservation(tokens, time.monotonic() + RESERVATION_SECONDS)
            return engine.sequence.rewind(n_reused)

    def _best_source(self, engine: RequestOwner, tokens: abc.Sequence[int], max_tokens: int) -> tuple[Sequence, int]:
        """Return the sequence with the longest reusable prefix of `tokens`, and its length."""
        sequences = [
            engine.sequence,
            *(each.sequence for each in self._engines if each is not engine),
            *self._prefix_cache,
        ]
        n_reused = [
            each.rewind_target(min(common_prefix_length(each.tokens, tokens), max_tokens)) for each in sequences
        ]
        best = max(range(len(n_reused)), key=n_reused.__getitem__)
        return sequences[best], n_reused[best]

    def _pending_source(
        self, engine: RequestOwner, tokens: abc.Sequence[int], min_tokens: int
    ) -> tuple[Sequence, int] | None:
        """Return a sequence that is evaluating at least the first `min_tokens` of `tokens`, and the length of the
        prefix."""
        for sequence in [*self._reservations, *(request.sequence for request in self._waiting)]:
            if engine.sequence.can_rewind and sequence is not engine.sequence:
                n = common_prefix_length([*sequence.tokens, *self._pending_tokens(sequence)], tokens)
                if n >= max(min_tokens, len(sequence) + 1):
                    return sequence, n
        return None

    def _pending_tokens(self, sequence: Sequence) -> abc.Sequence[int]:
        """Return the tokens that are queued or announced for a sequence."""
        for request in self._waiting:
            if request.sequence is sequence:
                return list(map(int, request.ids[request.n_done :]))
        reservation = self._reservations.get(sequence)
        return reservation.tokens[len(sequence) :] if reservation and reservation.is_valid else ()

    def _evict(self) -> bool:
        """Evict a sequence: the least recently used one of the prefix cache, or else that of an idle engine.

        Return whether there was one.
        """
        if self._prefix_cache.evict():
            return True
        idle = (engine.sequence for engine in self._engines if engine.is_idle and engine.sequence.tokens)
        sequence = next(idle, None)
        if sequence is not None:
            sequence.reset()
        return sequence is not None


def runs_uninterrupted() -> bool:
    """Return whether the current thread is neither the main thread, which Ctrl-C interrupts, nor a daemon."""
    thread = threading.current_thread()
    return not thread.daemon and thread is not threading.main_thread()
