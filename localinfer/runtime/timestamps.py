"""Timestamps of a run: the thread, the begin and the end of every chunk of an op.

If timestamps are recorded, the executor (`localinfer.kernels.executor`) writes three 64-bit integers for each chunk
that it runs: the address of the op record, and the clock ticks before and after. They are stored in front of the
thread's scratch memory.
"""

import ctypes
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.graph.ops.buffers import ALIGNMENT
from localinfer.kernels.layout import TIMESTAMP_WORDS, TIMESTAMPS_BYTES, TIMESTAMPS_OFFSET
from quant.jit import loader
from quant.jit.kernel import Kernel
from quant.jit.kernel_call import HEADER_WORDS, RECORD_WORDS, KernelFunction

CLOCK = Kernel("localinfer.kernels.roofline", "clock", ("result",))
Numbers = NDArray[np.int64]


class Clock:
    """The tick counter that compiled code reads. The estimate of a tick's length improves with the time
    since creation."""

    def __init__(self) -> None:
        addresses, _ = loader.load_kernels([CLOCK], paths.jit_dir())
        self._run, self._result = KernelFunction(addresses[CLOCK]), np.zeros(1, np.int64)
        self._call = np.zeros(RECORD_WORDS, np.int64)
        self._call[HEADER_WORDS] = self._result.ctypes.data
        self._first = self._now()

    def _now(self) -> tuple[int, float]:
        """Return ticks and seconds of the same moment."""
        self._run(ctypes.c_int64(self._call.ctypes.data), 0, 1, 0)
        return int(self._result[0]), time.perf_counter()

    def seconds_per_tick(self) -> float:
        """Return the length of a tick in seconds. Raises LocalInferError if the CPU has no readable clock."""
        (first, begin), (last, end) = self._first, self._now()
        if last <= first:
            raise LocalInferError("this CPU has no clock that compiled code can read")
        return (end - begin) / (last - first)


class Timestamps(NamedTuple):
    """Timestamps with an entry for each chunk of an op: op number, thread number, begin and end in ticks."""

    op: Numbers
    thread: Numbers
    begin: Numbers
    end: Numbers


@dataclass(eq=False)
class TimestampBuffer:
    """Memory of the threads of a pool that executes `op_records`: for each thread a buffer of timestamps, then its
    scratch memory."""

    op_records: Numbers
    n_threads: int
    scratch_bytes: int
    _memory: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        raw = np.zeros(self.n_threads * (TIMESTAMPS_BYTES + self.scratch_bytes) + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self._memory = raw[start : raw.nbytes - ALIGNMENT + start].reshape(self.n_threads, -1)

    @property
    def scratches(self) -> list[int]:
        """Return the address of each thread's scratch memory."""
        return [each.ctypes.data + TIMESTAMPS_BYTES for each in self._memory]

    def take(self) -> Timestamps:
        """Return the timestamps since the last call and clear the buffer.

        Raises LocalInferError if the buffer has overflowed.
        """
        threads = []
        for number, memory in enumerate(self._memory):
            words = memory[:TIMESTAMPS_BYTES].view(np.int64)
            count, words[0] = int(words[0]), 0
            if TIMESTAMPS_OFFSET + 8 * TIMESTAMP_WORDS * (count + 1) > TIMESTAMPS_BYTES:
                raise LocalInferError("too many ops for the timestamp buffer: reduce ubatch_size (--ubatch-size)")
            stamps = words[TIMESTAMPS_OFFSET // 8 :][: TIMESTAMP_WORDS * count].reshape(-1, TIMESTAMP_WORDS)
            threads.append(np.column_stack([np.full(count, number), stamps]))
        thread, address, begin, end = np.concatenate(threads).T
        op = (address - self.op_records.ctypes.data) // self.op_records.strides[0]
        return Timestamps(op, thread, begin, end)
