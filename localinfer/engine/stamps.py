"""Time stamps of a run: which thread worked on what, and when.

An executor that leaves them (`localinfer.ops.execute`) writes three words for each part of an op that it runs, into
memory that lies in front of the thread's scratch memory: the op record's address, and the clock's ticks before and
after. Knows no model and no kernel.
"""

import ctypes
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.ops.layout import STAMP_WORDS, STAMPS_BYTES, STAMPS_FIRST
from localinfer.plan.buffers import ALIGNMENT
from quant.jit import loader
from quant.jit.kernel import Kernel
from quant.jit.record import HEADER_WORDS, RECORD_WORDS, RUN

CLOCK = Kernel("localinfer.ops.measure", "clock", ("result",))
Numbers = NDArray[np.int64]


class Clock:
    """The clock that compiled code reads; how long its ticks are is known the better, the longer it is asked after."""

    def __init__(self) -> None:
        addresses, _ = loader.addresses([CLOCK], paths.jit_dir())
        self._run, self._result = RUN(addresses[CLOCK]), np.zeros(1, np.int64)
        self._record = np.zeros(RECORD_WORDS, np.int64)
        self._record[HEADER_WORDS] = self._result.ctypes.data
        self._first = self._now()

    def _now(self) -> tuple[int, float]:
        """Ticks and seconds of the same moment."""
        self._run(ctypes.c_int64(self._record.ctypes.data), 0, 1, 0)
        return int(self._result[0]), time.perf_counter()

    def seconds_per_tick(self) -> float:
        """Raises LocalInferError where the CPU has no clock that a program may read."""
        (first, begin), (last, end) = self._first, self._now()
        if last <= first:
            raise LocalInferError("this CPU has no clock that compiled code can read")
        return (end - begin) / (last - first)


@dataclass(frozen=True)
class Stamps:
    """What was stamped, an entry for each part of an op: the op's number, the thread's, the ticks at begin and end."""

    op: Numbers
    thread: Numbers
    begin: Numbers
    end: Numbers


@dataclass(eq=False)
class StampedMemory:
    """The memory of each thread of a team: room for stamps, then scratch memory."""

    threads: int
    scratch_bytes: int
    _memory: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        raw = np.zeros(self.threads * (STAMPS_BYTES + self.scratch_bytes) + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self._memory = raw[start : raw.nbytes - ALIGNMENT + start].reshape(self.threads, -1)

    @property
    def scratches(self) -> list[int]:
        """Where each thread's scratch memory begins."""
        return [each.ctypes.data + STAMPS_BYTES for each in self._memory]

    def taken(self, program: Numbers) -> Stamps:
        """The stamps of the runs of a program since they were last taken.

        Raises LocalInferError when there were more than there is room for.
        """
        threads = []
        for number, memory in enumerate(self._memory):
            words = memory[:STAMPS_BYTES].view(np.int64)
            count, words[0] = int(words[0]), 0
            if STAMPS_FIRST + 8 * STAMP_WORDS * (count + 1) > STAMPS_BYTES:
                raise LocalInferError("more ops were run at a time than can be stamped: --batch-size sets fewer tokens")
            stamps = words[STAMPS_FIRST // 8 :][: STAMP_WORDS * count].reshape(-1, STAMP_WORDS)
            threads.append(np.column_stack([np.full(count, number), stamps]))
        thread, address, begin, end = np.concatenate(threads).T
        return Stamps((address - program.ctypes.data) // program.strides[0], thread, begin, end)
