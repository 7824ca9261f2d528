"""The thread pool that executes a compute graph. Its threads sleep between runs; the calling thread only waits.

Python delivers signals to the main thread alone, and only between byte codes. Compiled code therefore runs in the
pool's threads, while the main thread waits on a lock, which a signal interrupts. A stop flag then ends the run at the
next op.

The first thread starts and ends each run in Python. The others, the workers, wait for the next run in compiled code for
a short time before they sleep, so that a decode step does not wait for each thread to get the GIL
(`localinfer.kernels.workers`).
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, compress, takewhile
from operator import call

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import NotEnoughMemoryError
from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH
from localinfer.kernels.layout import (
    POOL_THREADS,
    SYNC_LINE_BYTES,
    SYNC_STAGE,
    WORKER_SCRATCH,
    pool_bytes,
    sync_bytes,
)
from localinfer.machine import resources
from localinfer.machine.thread_priority import prefer_performance_cores
from localinfer.runtime.idle_work import IdleWork
from quant.jit.kernel import Kernel
from quant.jit.kernel_call import HEADER_WORDS, KernelFunction

OnOp = Callable[[int], None]  # progress callback: receives the number of the current op

SIGNAL_POLL_SECONDS = 0.1  # a signal that arrives just before a wait begins is only seen after it
THREAD_START_SECONDS = 5e-5  # threads need the GIL to start; idle work that holds it must wait for that
WORKER_WAITS = 24_000  # iterations that a worker waits for the next run: 0.2 to 1 ms, more than between decode steps

EXECUTE = Kernel(
    "localinfer.kernels.executor",
    "execute",
    ("first", "end", "op_records", "sync", "stop", "timestamps"),
    constants=(("max_small_batch", MAX_SMALL_BATCH),),
)
START_WORKERS = Kernel("localinfer.kernels.workers", "start_workers", ("pool", "active", "workers", "asleep"))
WORK = Kernel("localinfer.kernels.workers", "work", ("pool", "execute", "call", "waits"))
POOL_KERNELS = EXECUTE, START_WORKERS, WORK


class KernelCall:
    """The arguments of a kernel, as int64 words in the order of its parameters, and the kernel's function."""

    def __init__(self, address: int, arguments: Sequence[int]) -> None:
        self.words = np.zeros(HEADER_WORDS + len(arguments), np.int64)
        self.words[HEADER_WORDS:] = arguments
        self.arguments = self.words[HEADER_WORDS:]
        self.address = self.words.ctypes.data  # reading it from numpy is as slow as the rest of a start
        self.function: Callable[[int, int, int, int], None] = KernelFunction(address)


class ThreadPool:
    """A pool with one thread for each address in `scratches`, which is the thread's scratch memory.

    It executes one graph, given as op records. `kernels` are the addresses of POOL_KERNELS, and `stop` is the flag that
    long kernels poll. Once all threads have started, the calling thread runs the pending callbacks of `idle_work`
    before it waits.
    """

    def __init__(
        self, kernels: Mapping[Kernel, int], op_records: NDArray[np.int64], stop: NDArray[np.int64],
        scratches: Sequence[int], idle_work: IdleWork | None = None,
    ) -> None:  # fmt: skip
        threads = len(scratches)
        self._op_records, self._stop, self._idle_work = op_records, stop, idle_work or IdleWork()
        self._sync, self._pool = (aligned_words(size(threads)) for size in (sync_bytes, pool_bytes))
        self._asleep = np.ones(threads, np.int64)  # which threads Python wakes; the first thread always
        waits = (
            WORKER_WAITS if threads <= resources.available_cpus() else 0
        )  # waiting would take a core from the others
        self._execute = KernelCall(kernels[EXECUTE], [0, 0, *map(address, (op_records, self._sync, stop)), 0])
        self._start_workers = KernelCall(kernels[START_WORKERS], [address(self._pool), 0, 0, address(self._asleep)])
        self._work = KernelCall(kernels[WORK], [address(self._pool), kernels[EXECUTE], self._execute.address, waits])
        self._start: Callable[[], None] = partial(self._start_workers.function, self._start_workers.address, 0, 1, 0)
        self._start_locks, self._done = [acquired_lock() for _ in range(threads)], acquired_lock()
        self._start_signals = [lock.release for lock in self._start_locks]
        self._end_waits, self._first_end_wait = (
            [partial(self._done.acquire, True, seconds)] for seconds in (SIGNAL_POLL_SECONDS, THREAD_START_SECONDS)
        )
        self._started: list[None] = []  # not empty once the current run has started
        self._finished: list[bool] = []  # not empty once it has ended
        self._on_op: OnOp | None = None
        self._alone = self._closed = False
        self.use_scratch(scratches)
        self._threads: list[threading.Thread] = []
        try:
            for number in range(threads):
                self._start_thread(number)
        except RuntimeError as error:  # no memory for a stack, or too many threads
            self.close()
            raise NotEnoughMemoryError(f"thread {number + 1} of {threads}: {error}") from None

    @property
    def execute(self) -> Callable[[int, int, int, int], None]:
        """The executor kernel, to be called with the result of `prepare`, a thread's number, the number of threads, and
        scratch memory."""
        return self._execute.function

    def run(self, first: int, end: int, n_threads: int, on_op: OnOp | None = None) -> None:
        """Run the ops `first` to `end - 1` with `n_threads` threads. Only one caller may run the pool at a time.

        The calling thread waits and reports the number of the current op to `on_op` every SIGNAL_POLL_SECONDS. An
        exception from `on_op`, a KeyboardInterrupt or an exception of a signal handler is raised after all threads have
        stopped.
        """
        self._stop_and_wait()
        self.prepare(first, end)
        workers = 0 if self._alone else n_threads - 1
        self._start_workers.arguments[1:3] = n_threads, workers
        self._started, self._finished, self._on_op = [], [], on_op
        # `compress` reads the flags that `_start` has written before.
        signals = chain([self._start], compress(self._start_signals[: workers + 1], self._asleep))
        # Python handles signals between byte codes, not within `extend`: all threads start or none does, and an
        # acquired lock is counted.
        try:
            self._started.extend(map(call, signals))
            if due := self._idle_work.due():
                self._finished.extend(takewhile(bool, map(call, self._first_end_wait)))
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
        self._execute.arguments[:2] = first, end
        return self._execute.address

    def use_scratch(self, scratches: Sequence[int], *, timestamps: bool = False, alone: bool = False) -> None:
        """Give the threads other scratch memory from the next run on. With `timestamps`, they write timestamps in front
        of it (`localinfer.runtime.timestamps`). With `alone`, only the first thread is woken, and it processes the
        chunks of all threads."""
        line = SYNC_LINE_BYTES // 8
        self._pool[(POOL_THREADS + WORKER_SCRATCH) // 8 :: line][: len(scratches)] = scratches
        self._execute.arguments[-1], self._alone = timestamps, alone

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
        while self._started and not self._finished:
            with contextlib.suppress(KeyboardInterrupt):
                self._stop[0] = 1
                self._wait_for_threads()

    def _wait_for_threads(self) -> None:
        """Wait until all started threads have finished."""
        while not self._finished:
            self._finished.extend(takewhile(bool, map(call, self._end_waits)))
            if self._on_op and not self._stop[0] and not self._finished:
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
            self._work.function(self._work.address, number, 1, 0)
            if number == 0:
                self._done.release()


def aligned_words(nbytes: int) -> NDArray[np.int64]:
    """Return zeros of this size that begin at a cache line."""
    words = np.zeros((nbytes + SYNC_LINE_BYTES) // 8, np.int64)
    return words[-address(words) % SYNC_LINE_BYTES // 8 :]


def address(words: NDArray[np.int64]) -> int:
    """Return the address of an array."""
    return words.ctypes.data


def acquired_lock() -> threading.Lock:
    """Return an acquired lock. Releasing it from another thread is the fastest way to wake the thread that waits for
    it."""
    lock = threading.Lock()
    lock.acquire()
    return lock
