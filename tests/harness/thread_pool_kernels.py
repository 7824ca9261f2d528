"""Kernels for tests of the thread pool: ops that detect when they run twice, or before their inputs are complete, and
ops that note which chunks run."""

from typing import Any

from numba import int64

from quant.jit.threads import atomic_add, atomic_load, chunk_range, pause
from quant.jit.vectors import load, store


def count() -> Any:
    """Return the kernel that adds 1 to every element of `counters`, and counts an error unless each element of the
    previous stage is 1 ahead.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(args.n, 1, chunk_index, n_chunks)
        for i in range(first, end):
            value = load(int64, args.counters + 8 * i)
            if args.before and load(int64, args.before + 8 * (i * 7919 % args.n)) != value + 1:
                atomic_add(args.errors, 1)
            store(args.counters + 8 * i, value + 1)

    return body


def hold() -> Any:
    """Return the kernel that runs until `stop` is set."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        while not atomic_load(args.stop):
            pause()

    return body


def note_chunk() -> Any:
    """Return the kernel that appends `number`, the chunk's index and the number of chunks to the records at `runs`,
    whose number is at `count`.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        record = args.runs + 24 * atomic_add(args.count, 1)
        store(record, args.number)
        store(record + 8, chunk_index)
        store(record + 16, n_chunks)

    return body
