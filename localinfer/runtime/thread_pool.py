"""The thread pool that executes a compute graph. Its threads sleep between runs; the calling thread only waits.

Python delivers signals to the main thread alone, and only between byte codes. Compiled code therefore runs in the
pool's threads, while the main thread waits on a lock, which a signal interrupts. A stop flag then ends the run at the
next op.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence, Sized
from functools import partial
from itertools import takewhile
from operator import call

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import NotEnoughMemoryError
from localinfer.kernels.layout import SYNC_LINE_BYTES, SYNC_STAGE, sync_bytes
from localinfer.machine.thread_priority import prefer_performance_cores
from quant.jit.kernel_call import HEADER_WORDS, KernelFunction

OnOp = Callable[[int], None]  # progress callback: receives the number of the current op
IdleWork = tuple[Sized, Callable[[], None]]  # pending items, and the callback that handles them

SIGNAL_POLL_SECONDS = 0.1  # a signal that arrives just before a wait begins is only seen after it
THREAD_START_SECONDS = 5e-5  # threads need the GIL to start; idle work that holds it must wait for that


class ThreadPool:
    """A pool with one thread for each address in `scratches`, which is the thread's scratch memory.

    It executes one graph, given as op records. `execute` is the address of the executor kernel and `stop` the flag that
    long kernels poll. Once all threads have started, the calling thread runs the pending callbacks of `idle_work`
    before it waits.
    """

    def __init__(
        self, execute: int, op_records: NDArray[np.int64], stop: NDArray[np.int64], scratches: Sequence[int],
        idle_work: Sequence[IdleWork] = (),
    ) -> None:  # fmt: skip
        threads = len(scratches)
        self._scratches = scratches
        self._op_records, self._stop = op_records, stop
        words = np.zeros((sync_bytes(threads) + SYNC_LINE_BYTES) // 8, np.int64)
        self._sync = words[-words.ctypes.data % SYNC_LINE_BYTES // 8 :]
        self._call = np.zeros(HEADER_WORDS + 6, np.int64)
        self._call[HEADER_WORDS + 2 : -1] = [each.ctypes.data for each in (op_records, self._sync, stop)]
        self._call_address = self._call.ctypes.data  # reading it from numpy is as slow as the rest of a start
        self.execute: Callable[[int, int, int, int], None] = KernelFunction(execute)
        self._start_locks, done = ([acquired_lock() for _ in range(threads)] for _ in range(2))
        self._signal_done = [lock.release for lock in done]
        self._start_signals = [lock.release for lock in self._start_locks]
        self._done_waits = [partial(lock.acquire, True, SIGNAL_POLL_SECONDS) for lock in done]
        self._first_done_wait = [partial(lock.acquire, True, THREAD_START_SECONDS) for lock in done[:1]]
        self._started: list[None] = []  # an entry for each started thread; `_finished` has one for each finished thread
        self._finished: list[bool] = []
        self._n_active = 0  # threads of the current run
        self._alone = False
        self._on_op: OnOp | None = None
        self._idle_work = idle_work
        self._closed = False
        self._threads: list[threading.Thread] = []
        try:
            for number in range(threads):
                self._start_thread(number)
        except RuntimeError as error:  # no memory for a stack, or too many threads
            self.close()
            raise NotEnoughMemoryError(f"thread {number + 1} of {threads}: {error}") from None

    def run(self, first: int, end: int, n_threads: int, on_op: OnOp | None = None) -> None:
        """Run the ops `first` to `end - 1` with `n_threads` threads. Only one caller may run the pool at a time.

        The calling thread waits and reports the number of the current op to `on_op` every SIGNAL_POLL_SECONDS. An
        exception from `on_op`, a KeyboardInterrupt or an exception of a signal handler is raised after all threads have
        stopped.
        """
        self._stop_and_wait()
        self._started, self._finished = [], []
        self.prepare(first, end)
        self._n_active, self._on_op = n_threads, on_op
        # Python handles signals between byte codes, not within `extend`: all threads start or none does, and each
        # acquired lock is counted.
        try:
            self._started.extend(map(call, self._start_signals[: 1 if self._alone else n_threads]))
            if due := [work for pending, work in self._idle_work if len(pending)]:
                self._finished.extend(takewhile(bool, map(call, self._first_done_wait)))
                for work in due:
                    work()
            self._wait_for_threads()
        except BaseException:
            self._stop_and_wait()
            raise

    def prepare(self, first: int, end: int) -> int:
        """Reset the synchronization state for a run of these ops. Return the address of the kernel call for
        `execute`."""
        self._stop[0] = 0
        self._sync[:] = 0
        self._sync[SYNC_STAGE // 8] = first - 1
        self._call[HEADER_WORDS], self._call[HEADER_WORDS + 1] = first, end
        return self._call_address

    def use_scratch(self, scratches: Sequence[int], *, timestamps: bool = False, alone: bool = False) -> None:
        """Give the threads other scratch memory from the next run on. With `timestamps`, they write timestamps in front
        of it (`localinfer.runtime.timestamps`). With `alone`, only the first thread is woken, and it processes the
        chunks of all threads."""
        self._scratches, self._call[-1], self._alone = scratches, timestamps, alone

    def close(self) -> None:
        """End the threads."""
        if not self._closed:
            self._stop_and_wait()
            self._closed = True
            for begin in self._start_signals:
                begin()
            for thread in self._threads:
                thread.join()

    def _stop_and_wait(self) -> None:
        """Stop the run and wait for its threads, through any further Ctrl-C."""
        while len(self._finished) < len(self._started):
            with contextlib.suppress(KeyboardInterrupt):
                self._stop[0] = 1
                self._wait_for_threads()

    def _wait_for_threads(self) -> None:
        """Wait until all started threads have finished."""
        while len(self._finished) < len(self._started):
            running = self._done_waits[len(self._finished) : len(self._started)]
            self._finished.extend(takewhile(bool, map(call, running)))
            if self._on_op and not self._stop[0] and len(self._finished) < len(self._started):
                self._on_op(max(0, int(self._sync[SYNC_STAGE // 8])))

    def _start_thread(self, number: int) -> None:
        thread = threading.Thread(target=self._thread_main, args=(number,), daemon=True, name=f"localinfer-{number}")
        thread.start()
        self._threads.append(thread)

    def _thread_main(self, number: int) -> None:
        prefer_performance_cores()
        while True:
            self._start_locks[number].acquire()
            if self._closed:
                return
            self.execute(self._call_address, number, self._n_active, self._scratches[number])
            self._signal_done[number]()


def acquired_lock() -> threading.Lock:
    """Return an acquired lock. Releasing it from another thread is the fastest way to wake the thread that waits for
    it."""
    lock = threading.Lock()
    lock.acquire()
    return lock
