"""The workers of the thread pool, which are all of its threads but the first: how they start, end, and wait.

A thread that returns to Python needs the GIL, so threads that start or end in Python do so one after the other. A
worker therefore stays in compiled code for a short time after a run and waits for the next one, which follows within
microseconds while tokens are decoded. Only a worker that has waited in vain returns, and sleeps on a lock in Python.

The first thread returns after each run, once all workers have finished. The state of the workers is in memory that the
pool owns (`localinfer.kernels.layout`).
"""

from typing import Any

from numba import int64

from localinfer.kernels.executor import SPIN_ITERATIONS, Body
from localinfer.kernels.layout import (
    POOL_ACTIVE,
    POOL_FINISHED,
    POOL_THREADS,
    POOL_WORKERS,
    SYNC_LINE_BYTES,
    WORKER_ASLEEP,
    WORKER_RUNNING,
    WORKER_SCRATCH,
    WORKER_WAITING,
)
from quant.jit.threads import atomic_add, atomic_load, atomic_store, atomic_swap, call_address, pause, yield_thread
from quant.jit.vectors import inline, load, store


@inline
def state_of(pool: int, number: int) -> Any:
    """Return the address of a thread's state."""
    return pool + POOL_THREADS + SYNC_LINE_BYTES * number


@inline
def wait_for_run(state: int, waits: int) -> Any:
    """Wait until a run starts this worker; return whether it did before `waits` iterations had passed."""
    for _ in range(waits):
        if atomic_load(state) != WORKER_WAITING:
            return True
        pause()
    return atomic_swap(state, WORKER_WAITING, WORKER_ASLEEP) != WORKER_WAITING


@inline
def wait_for_workers(pool: int) -> None:
    """Wait until all workers of the run have finished."""
    turns = 0
    while atomic_load(pool + POOL_FINISHED) < load(int64, pool + POOL_WORKERS):
        pause()
        turns += 1
        if turns > SPIN_ITERATIONS:
            yield_thread()


def start_workers() -> Body:
    """Make the kernel that starts the first `workers` workers for a run of `active` threads.

    It writes to the array at `asleep`, for thread number n, whether Python must wake it.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        store(args.pool + POOL_ACTIVE, args.active)
        store(args.pool + POOL_WORKERS, args.workers)
        atomic_store(args.pool + POOL_FINISHED, int64(0))
        for number in range(1, args.workers + 1):
            state = state_of(args.pool, number)
            before = atomic_swap(state, WORKER_WAITING, WORKER_RUNNING)
            if before != WORKER_WAITING:
                atomic_store(state, WORKER_RUNNING)
            store(args.asleep + 8 * number, int64(before != WORKER_WAITING))

    return body


def work() -> Body:
    """Make the kernel that runs thread number `chunk_index`: the first thread for one run, a worker until it has
    waited `waits` iterations for the next run.

    `execute` is the address of the executor kernel, and `call` that of its arguments.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        state = state_of(args.pool, chunk_index)
        while True:
            active, its_scratch = load(int64, args.pool + POOL_ACTIVE), load(int64, state + WORKER_SCRATCH)
            call_address(args.execute, args.call, chunk_index, active, its_scratch)
            if chunk_index == 0:
                wait_for_workers(args.pool)
                return
            atomic_store(state, WORKER_WAITING)  # before it counts as finished: the next run may begin right after
            atomic_add(args.pool + POOL_FINISHED, 1)
            if not wait_for_run(state, args.waits):
                return

    return body
