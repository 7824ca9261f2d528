"""The scheduler: continuous batching of requests from several sequences, with prefix caching.

    scheduler = Scheduler(model_runner)
    engine = ScheduledEngine(scheduler)  # for a thread of its own; at most `graph.sequences` of them
    engine.evaluate(tokens)              # waits until the tokens are evaluated, batched with other requests
    engine.run_step(decode_loop)         # the same for a decode step; the next step starts before it is requested
    engine.mark_idle()                   # batches no longer wait for the engine

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

import threading
from collections import abc

from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.modifiers import Modifiers
from localinfer.runtime.scheduling.draft_head_batcher import DraftHeadBatcher
from localinfer.runtime.scheduling.expected_sequences import ExpectedSequences
from localinfer.runtime.scheduling.hook_turns import HookTurns
from localinfer.runtime.scheduling.pending_prompts import PendingPrompts
from localinfer.runtime.scheduling.prefix_cache import MIN_SHARED_TOKENS, PrefixCache
from localinfer.runtime.scheduling.request import POLL_SECONDS, Request, RequestOwner, RequestState
from localinfer.runtime.scheduling.request_batch import RequestSlice, run_batch, select_batch
from localinfer.runtime.scheduling.scheduler_thread import SchedulerThread
from localinfer.runtime.scheduling.wake_queue import MIN_WOKEN, WakeQueue
from localinfer.runtime.sequence import Sequence
from localinfer.runtime.thread_pool import OnOp
from quant.jit.loader import Progress


class Scheduler:
    """Schedules the requests of all sequences of a model into batches."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.draft_head = DraftHeadBatcher(runner)
        # Notified after each batch, and when a sequence is no longer expected.
        self._condition = threading.Condition(runner.page_table_lock)
        self._queue: list[Request] = []  # waiting and running requests in order of arrival
        self._running: list[Request] = []  # the batch that is being computed
        self._expected = ExpectedSequences(self._condition)
        self._wake_queue = WakeQueue(runner.compiled_graph)
        self._direct_sequence: Sequence | None = None  # evaluated directly by its own thread
        self._direct_thread: threading.Thread | None = None  # the thread that evaluates it
        self._pending_prompts = PendingPrompts(self._queue)
        self._prefix_cache = PrefixCache(runner.compiled_graph.n_ctx)
        self._hook_turns = HookTurns()
        runner.evict = self._prefix_cache.evict
        self._thread = SchedulerThread(
            self._condition, lambda: bool(self._queue), lambda: self._direct_sequence is not None, self._run_next_batch
        )

    def close(self) -> None:
        """End the thread. The model is closed, so that requests that still arrive fail."""
        self._thread.close()

    def register(self, engine: RequestOwner) -> None:
        """Add an engine, whose cached prefixes are then shared."""
        with self._condition:
            self._prefix_cache.register(engine)

    # --- requests ---

    def run(self, request: Request, on_op: OnOp | None = None) -> None:
        """Run a request and wait until it is finished. If `on_op` raises, the tokens evaluated so far stay in the
        sequence."""
        engine = request.engine
        try:
            with self._condition:
                engine.awaited_step, engine.may_run_directly = request.step, runs_uninterrupted()
                next_step = request.next_request if request.state is RequestState.FINISHED else None
                if request.state is RequestState.CREATED:
                    self._submit(request)
                elif next_step and next_step.state is RequestState.CREATED and self._starts_early(engine):
                    self._submit(next_step)
                all_returned = self._wake_queue.mark_returned(engine)
                is_last = request.state is RequestState.RUNNING and all_returned
            if is_last:
                self.runner.compiled_graph.idle_work.run()
            while request.state is not RequestState.FINISHED:
                if on_op:
                    on_op(len(self.runner.graph.ops) * request.n_done // len(request.ids))
                engine.sleep()
        except BaseException:
            self.cancel(engine)
            raise
        if request.error:
            raise request.error

    def cancel(self, engine: RequestOwner) -> None:
        """Withdraw the engine's requests.

        A running batch is completed first, and a KeyboardInterrupt is delayed until then, as the batch changes the
        sequence.
        """
        interrupt: KeyboardInterrupt | None = None
        with self._condition:
            cancelled = self._withdraw(engine)
            while self._thread.is_alive and any(request.engine is engine for request in self._running):
                try:
                    self._condition.wait(POLL_SECONDS)
                except KeyboardInterrupt as error:
                    interrupt = error
                cancelled += self._withdraw(engine)
            for request in cancelled:
                if request.state is not RequestState.FINISHED:
                    request.state = RequestState.CREATED
        if interrupt:
            raise interrupt

    def _withdraw(self, engine: RequestOwner) -> list[Request]:
        """Remove the engine's requests from the queue, so that the next batch leaves them out, and return them.

        That batch may begin before a thread that waits for the end of the running one is woken.
        """
        withdrawn = [request for request in self._queue if request.engine is engine]
        self._queue[:] = [request for request in self._queue if request.engine is not engine]
        return withdrawn

    def pause(self, engine: RequestOwner, *, is_idle: bool = False) -> None:
        """Stop waiting for the engine's next request. The pages of an idle engine may be evicted."""
        with self._condition:
            engine.is_idle = engine.is_idle or is_idle
            self._pending_prompts.withdraw(engine.sequence)
            self._expected.discard(engine.sequence)
            self._wake_queue.mark_returned(engine)
            self._condition.notify_all()

    def _submit(self, request: Request) -> None:
        """Queue a request for the next batches."""
        self._thread.start()
        request.state = RequestState.WAITING
        self._queue.append(request)
        self._pending_prompts.withdraw(request.sequence)
        self._expected.mark_arrived(request.sequence)

    def _starts_early(self, engine: RequestOwner) -> bool:
        """Return whether a decode loop's next step starts before it is requested."""
        return not engine.may_run_directly or self._has_other_work(engine.sequence)

    def _has_other_work(self, sequence: Sequence) -> bool:
        """Return whether other sequences run, have requests, or are expected to have some soon."""
        has_work = self._running or self._queue or self._direct_sequence
        return bool(has_work) or self._expected.has_others(sequence)

    # --- direct evaluation, without the scheduler thread ---

    def try_begin_direct(self, sequence: Sequence) -> bool:
        """Reserve the model for direct evaluation by this thread, unless other sequences have requests. Return whether
        this succeeded.

        The caller must then call `end_direct`; requests that arrive meanwhile wait for that.
        """
        with self._condition:
            if self._thread.is_shut_down or self._has_other_work(sequence) or not runs_uninterrupted():
                return False
            self._direct_sequence, self._direct_thread = sequence, threading.current_thread()
            self._pending_prompts.withdraw(sequence)
            self._expected.discard(sequence)
            return True

    def end_direct(self) -> None:
        """End a direct evaluation. Requests that arrived meanwhile wait for the sequence's next step."""
        with self._condition:
            if self._queue and self._direct_sequence:
                self._expected.add(self._direct_sequence)
                self._condition.notify_all()  # only here: waking the scheduler thread costs a fraction of a step
            self._direct_sequence = self._direct_thread = None

    def wait_for_direct(self, sequence: Sequence) -> None:
        """Wait until no other thread evaluates the sequence directly."""
        with self._condition:
            while self._direct_sequence is sequence and self._direct_thread and self._direct_thread.is_alive():
                self._condition.wait(POLL_SECONDS)

    def is_computing_thread(self) -> bool:
        """Return whether the current thread evaluates batches."""
        return self._thread.is_current or threading.current_thread() is self._direct_thread

    # --- batches, in the scheduler thread ---

    def _run_next_batch(self) -> None:
        """Run one batch of queued requests."""
        self._expected.wait()
        batch = self._begin_batch()
        try:
            if batch:  # empty if all requests were cancelled
                run_batch(self.runner, batch)
        except BaseException as error:  # waiting threads raise it; the scheduler thread continues
            for request in self._running:
                request.error = error
        finally:
            self._end_batch()

    def _begin_batch(self) -> list[RequestSlice]:
        """Select the next batch, and mark its requests as running."""
        with self._condition:
            requests = self._hook_turns.next_requests(self._queue)
            batch = select_batch(requests, self.runner.graph, self.runner.compiled_graph.max_batch)
            self._running = [each.request for each in batch]
            for request in self._running:
                request.state = RequestState.RUNNING
            return batch

    def _end_batch(self) -> None:
        """Update the queue after a batch: submit the next steps of decode loops, and wake the threads of finished
        requests.

        Some threads are woken when the next batch runs, all at once if the next batch waits for one of them.
        """
        with self._condition:
            batch, self._running = self._running, []
            for request in batch:
                request.end_batch()
            finished = [request for request in batch if request.state is RequestState.FINISHED]
            self._queue[:] = [request for request in self._queue if request.state is not RequestState.FINISHED]
            has_others = len(finished) + len(self._queue) > 1
            max_lead = min(len(finished) // MIN_WOKEN, MIN_WOKEN)
            for request in finished:
                engine, next_step = request.engine, request.next_request
                is_close_behind = (
                    request.decode_loop is engine.decode_loop and request.step - engine.awaited_step <= max_lead
                )
                if next_step and is_close_behind and (has_others or not engine.may_run_directly):
                    self._submit(next_step)
                elif next_step or not request.decode_loop:
                    self._expected.add(engine.sequence)
                if request.is_awaited:
                    self._wake_queue.add(engine, has_next_step=next_step is not None)
            self._wake_queue.schedule(at_once=bool(self._expected) or not self._queue)
            self._condition.notify_all()

    # --- prefix caching ---

    def replace_sequence(self, engine: RequestOwner, modifiers: Modifiers) -> None:
        """Give an engine an empty sequence with these modifiers. Its own one stays in the prefix cache, unless it has
        hooks."""
        with self._condition:
            self._pending_prompts.withdraw(engine.sequence)
            self._expected.mark_arrived(engine.sequence)
            self._prefix_cache.replace_sequence(engine, self.runner.new_sequence(modifiers))

    def reuse_prefix(
        self, engine: RequestOwner, tokens: abc.Sequence[int], max_tokens: int, progress: Progress | None
    ) -> int:
        """Give an engine the longest cached prefix of `tokens`, at most `max_tokens` long, and return its length.

        The prefix comes from the engine's own sequence, another engine's, or the prefix cache. If another sequence is
        about to evaluate a longer prefix, wait for that. A sequence with hooks reuses nothing.
        """
        pending = self._pending_prompts
        with self._condition:
            engine.is_idle = False
            pending.withdraw(engine.sequence)
            self._expected.mark_arrived(engine.sequence)
            if engine.sequence.modifiers.hooks:
                engine.sequence.reset()
                return 0
            source, length = self._prefix_cache.longest_prefix(engine, tokens, max_tokens)
            while longer := pending.find_prefix(engine.sequence, tokens[:max_tokens], length + MIN_SHARED_TOKENS):
                sequence, pending_length = longer
                while len(sequence) < pending_length and pending.tokens_of(sequence):
                    self._condition.wait(POLL_SECONDS)
                    if progress:
                        progress("prefill", 0, len(tokens))
                source, length = self._prefix_cache.longest_prefix(engine, tokens, max_tokens)
            self._prefix_cache.fork_prefix(engine, source, length)
            pending.announce(engine.sequence, tokens)
            return engine.sequence.rewind(length)


def runs_uninterrupted() -> bool:
    """Return whether the current thread is neither the main thread, which Ctrl-C interrupts, nor a daemon."""
    thread = threading.current_thread()
    return not thread.daemon and thread is not threading.main_thread()
