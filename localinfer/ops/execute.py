"""The executor: every thread of the team runs through the same list of ops, and they meet at barriers.

The op record is described in `quant.record`.
"""

from collections.abc import Callable
from typing import Any

from numba import int64

from localinfer.ops.layout import ARRIVED, HALTED, ROUND, STOP
from quant.record import RECORD_WORDS
from quant.threads import atomic_add, atomic_load, atomic_store, call, give_way, pause
from quant.vectors import inline, load

Body = Callable[..., None]

RECORD_BYTES = 8 * RECORD_WORDS
PATIENCE = 2000  # turns in a spin loop before the core is offered to others


@inline
def meet(sync: int, threads: int) -> Any:
    """Wait for all threads; whether to go on. The last to arrive reads the stop flag for all."""
    current = atomic_load(sync + ROUND)
    if atomic_add(sync + ARRIVED, 1) == threads - 1:
        atomic_store(sync + ARRIVED, 0)
        atomic_store(sync + HALTED, load(int64, sync + STOP))
        atomic_store(sync + ROUND, current + 1)
    else:
        turns = 0
        while atomic_load(sync + ROUND) == current:
            pause()
            turns += 1
            if turns > PATIENCE:
                give_way()
    return atomic_load(sync + HALTED) == 0


def execute(few: int) -> Body:
    """The kernel that runs ops first .. end of a program; `few` is the most tokens that the first kernels take."""

    def body(program, first, end, sync, part, parts, scratch):
        for op in range(program + RECORD_BYTES * first, program + RECORD_BYTES * end, RECORD_BYTES):
            tokens = load(int64, load(int64, op + 16))
            call(load(int64, op if tokens <= few else op + 8), op, part, parts, scratch)
            if load(int64, op + 24) and not meet(sync, parts):
                return

    return body
