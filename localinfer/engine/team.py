"""The threads that run a plan. They sleep between runs; the caller's thread only waits, so that Ctrl-C reaches it.

Python delivers signals to its main thread alone, and only between byte codes: the compiled code runs in threads of the
team, and the main thread waits on a lock, which a signal interrupts. A stop flag then ends the run at the next op.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence, Sized
from functools import partial
from itertools import takewhile
from operator import call

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import NotEnoughMemory
from localinfer.ops.layout import LINE, STAGE, sync_bytes
from quant.jit.record import HEADER_WORDS, RUN

Watch = Callable[[int], None]  # is told the number of an op
Work = tuple[Sized, Callable[[], None]]  # what is left of it, and what does that

DEAF_SECONDS = 0.1  # a signal that arrives just before a wait begins is only seen after it
START_SECONDS = 5e-5  # threads need the interpreter to begin, which whoever does something meanwhile would hold


class Team:
    """A thread for each address in `scratches`, memory that it has to itself, for one program of op records.

    `execute` is the address of the executor kernel, `stop` the flag that long kernels look at. When all have been sent
    off, and the caller's thread would only wait, it does the work in `meanwhile` of which something is left.
    """

    def __init__(
        self, execute: int, program: NDArray[np.int64], stop: NDArray[np.int64], scratches: Sequence[int],
        meanwhile: Sequence[Work] = (),
    ) -> None:  # fmt: skip
        threads = len(scratches)
        self._scratches = scratches
        self._program, self._stop = program, stop
        words = np.zeros((sync_bytes(threads) + LINE) // 8, np.int64)
        self._sync = words[-words.ctypes.data % LINE // 8 :]
        self._call = np.zeros(HEADER_WORDS + 5, np.int64)
        self._call[HEADER_WORDS + 2 :] = [each.ctypes.data for each in (program, self._sync, stop)]
        self._record = self._call.ctypes.data  # asking numpy takes as long as all else that begins a run
        self.execute: Callable[[int, int, int, int], None] = RUN(execute)
        self._go, done = ([taken_lock() for _ in range(threads)] for _ in range(2))
        self._tell_done = [lock.release for lock in done]
        self._begin = [lock.release for lock in self._go]
        self._wait = [partial(lock.acquire, True, DEAF_SECONDS) for lock in done]
        self._glance = [partial(lock.acquire, True, START_SECONDS) for lock in done[:1]]
        self._begun: list[None] = []  # an entry for every thread that was sent off, and that was waited for
        self._ended: list[bool] = []
        self._awake = 0  # threads that take part in a run
        self._watch: Watch | None = None
        self._meanwhile = meanwhile
        self._closed = False
        self._members: list[threading.Thread] = []
        try:
            for number in range(threads):
                self._add_member(number)
        except RuntimeError as error:  # no room for its stack, or too many processes
            self.close()
            raise NotEnoughMemory(f"thread {number + 1} of {threads}: {error}") from None

    def run(self, first: int, end: int, members: int, watch: Watch | None = None) -> None:
        """Run the ops first .. end - 1 with so many threads; the others sleep on. For one caller at a time.

        The caller's thread, which only waits, tells `watch` every DEAF_SECONDS at which op they are. What that raises,
        a KeyboardInterrupt or any exception of a signal handler passes through when all threads have stopped.
        """
        self._settle()
        self._begun, self._ended = [], []
        self.prepare(first, end)
        self._awake, self._watch = members, watch
        # Python handles signals between its own byte codes, not within `extend`: all threads begin or none does, and
        # a lock that was acquired has been counted.
        try:
            self._begun.extend(map(call, self._begin[:members]))
            if due := [work for left, work in self._meanwhile if len(left)]:
                self._ended.extend(takewhile(bool, map(call, self._glance)))
                for work in due:
                    work()
            self._await()
        except BaseException:
            self._settle()
            raise

    def prepare(self, first: int, end: int) -> int:
        """Put everything where it is before a run of these ops; the op record that `execute` takes."""
        self._stop[0] = 0
        self._sync[:] = 0
        self._sync[STAGE // 8] = first - 1
        self._call[HEADER_WORDS], self._call[HEADER_WORDS + 1] = first, end
        return self._record

    def close(self) -> None:
        """End the threads."""
        if not self._closed:
            self._settle()
            self._closed = True
            for begin in self._begin:
                begin()
            for member in self._members:
                member.join()

    def _settle(self) -> None:
        """Stop the threads and wait until none runs, through any further Ctrl-C."""
        while len(self._ended) < len(self._begun):
            with contextlib.suppress(KeyboardInterrupt):
                self._stop[0] = 1
                self._await()

    def _await(self) -> None:
        """Wait until none of the threads runs that were sent off."""
        while len(self._ended) < len(self._begun):
            running = self._wait[len(self._ended) : len(self._begun)]
            self._ended.extend(takewhile(bool, map(call, running)))
            if self._watch and not self._stop[0] and len(self._ended) < len(self._begun):
                self._watch(max(0, int(self._sync[STAGE // 8])))

    def _add_member(self, number: int) -> None:
        member = threading.Thread(target=self._member, args=(number,), daemon=True, name=f"localinfer-{number}")
        member.start()
        self._members.append(member)

    def _member(self, number: int) -> None:
        while True:
            self._go[number].acquire()
            if self._closed:
                return
            self.execute(self._record, number, self._awake, self._scratches[number])
            self._tell_done[number]()


def taken_lock() -> threading.Lock:
    """A lock that its owner waits for and another thread gives back: the quickest way to wake a thread."""
    lock = threading.Lock()
    lock.acquire()
    return lock
