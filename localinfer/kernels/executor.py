"""The executor: all threads of the pool run through the op records (`quant.jit.kernel_call`) of a graph together.

Ops that can run side by side, such as the products of q, k and v, form a stage. The work of a stage is divided
into chunks. Each thread has a range of chunks, which are adjacent in memory. A thread processes its own chunks, then
steals those that other threads have not begun, and counts the finished ones. The thread that finishes the last chunk of
a stage runs the following ops that are too small to divide, up to the next stage with chunks for all threads, and
publishes it.

So threads only wait for chunks that are in progress. A slow thread leaves its chunks to others; a late thread finds its
chunks taken and joins at the current stage. `localinfer.evaluation.simulation.simulated_executor` follows this code.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import int64

from localinfer.kernels.layout import (
    SYNC_ENTERED,
    SYNC_FINISHED,
    SYNC_GROUP,
    SYNC_LINE_BYTES,
    SYNC_STAGE,
    SYNC_THREADS,
    TIMESTAMP_WORDS,
    TIMESTAMPS_BYTES,
    TIMESTAMPS_OFFSET,
)
from quant.jit.kernel_call import CHUNKS_OFFSET, KERNELS_OFFSET, NEXT_STAGE_OFFSET, RECORD_WORDS, TOKENS_OFFSET
from quant.jit.threads import (
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_swap,
    call_address,
    pause,
    ticks,
    yield_thread,
)
from quant.jit.vectors import inline, load, store

Body = Callable[..., None]

RECORD_BYTES = 8 * RECORD_WORDS
CLAIMED_BITS = 20  # low bits of a claim counter: the chunks claimed; the stage is above them
SPIN_ITERATIONS = 2000  # spins before the thread yields its core


@inline
def claim(thread: int, stage: int, chunks: int) -> Any:
    """Claim one of a thread's `chunks` chunks and return its number, or `chunks` if none is left.

    The claim counter only grows, so a thread that is behind cannot claim chunks of a later stage.
    """
    none_taken = stage << CLAIMED_BITS
    counter = atomic_load(thread)
    while True:
        free = max(counter, none_taken)
        if free - none_taken >= chunks:
            return chunks
        before = atomic_swap(thread, counter, free + 1)
        if before == counter:
            return free - none_taken
        counter = before


@inline
def wait(sync: int, stage: int, stop: int) -> Any:
    """Wait until the pool has reached this stage or a later one, or `stop` is set; return the current stage."""
    turns = 0
    while atomic_load(sync + SYNC_STAGE) < stage and not atomic_load(stop):
        pause()
        turns += 1
        if turns > SPIN_ITERATIONS:
            yield_thread()
    return atomic_load(sync + SYNC_STAGE)


@inline
def count_finished(sync: int, owner: int, finished: int, each: int, n_threads: int) -> Any:
    """Count finished chunks of those that belong to a thread, `each` per thread; return whether all chunks of the stage
    are finished.

    Groups of threads have counters of their own, because a counter moves from core to core with each addition. The
    thread that completes a group clears its counter for the next stage and counts the group.
    """
    group, n_groups = owner // SYNC_GROUP, (n_threads + SYNC_GROUP - 1) // SYNC_GROUP
    counter = sync + SYNC_THREADS + SYNC_LINE_BYTES * (n_threads + group)
    in_group = min(SYNC_GROUP, n_threads - SYNC_GROUP * group)
    if atomic_add(counter, finished) + finished < each * in_group:
        return False
    atomic_store(counter, 0)
    if n_groups > 1 and atomic_add(sync + SYNC_FINISHED, 1) + 1 < n_groups:
        return False
    atomic_store(sync + SYNC_FINISHED, 0)
    return True


@inline
def write_timestamp(op: int, begin: int, end: int, scratch: int) -> None:
    """Store the timestamps of a chunk of an op before the thread's scratch memory, unless that space is full."""
    timestamps = scratch - TIMESTAMPS_BYTES
    count = load(int64, timestamps)
    at = timestamps + TIMESTAMPS_OFFSET + 8 * TIMESTAMP_WORDS * count
    if at + 8 * TIMESTAMP_WORDS <= scratch:
        store(at, op)
        store(at + 8, begin)
        store(at + 16, end)
        store(timestamps, count + 1)


class Thread(NamedTuple):
    """A thread's scratch memory, and whether it writes timestamps."""

    scratch: int
    timestamps: int


def make_op_functions(max_small_batch: int) -> Any:
    """Make the functions for an op record, which has a kernel and a chunk count for batches of up to
    `max_small_batch` tokens, and for larger ones.

    chunks_of(op) returns the chunks per thread, 0 if one thread runs the op. run(op, chunk_index, n_chunks, thread)
    runs a chunk.
    """

    @inline
    def column(op: int) -> Any:
        return op if load(int64, load(int64, op + TOKENS_OFFSET)) <= max_small_batch else op + 8

    @inline
    def chunks_of(op: int) -> Any:
        return load(int64, column(op) + CHUNKS_OFFSET)

    @inline
    def run(op: int, chunk_index: int, n_chunks: int, thread: Thread) -> None:
        kernel = load(int64, column(op) + KERNELS_OFFSET)
        if thread.timestamps:
            begin = ticks()
            call_address(kernel, op, chunk_index, n_chunks, thread.scratch)
            write_timestamp(op, begin, ticks(), thread.scratch)
        else:
            call_address(kernel, op, chunk_index, n_chunks, thread.scratch)

    return chunks_of, run


def make_stage_functions(chunks_of: Any, run: Any) -> Any:
    """Make the functions for a stage, the op records from address `first` up to `end`, from those for an op.

    chunks_in_stage(first, end) returns the chunks per thread. run_chunk(first, end, owner, number, n_threads, thread)
    runs chunk `number` of those that belong to the thread number `owner`.
    """

    @inline
    def chunks_in_stage(first: int, end: int) -> Any:
        chunks = 0
        for op in range(first, end, RECORD_BYTES):
            chunks += chunks_of(op)
        return chunks

    @inline
    def run_chunk(first: int, end: int, owner: int, number: int, n_threads: int, thread: Thread) -> None:
        for op in range(first, end, RECORD_BYTES):
            chunks = chunks_of(op)
            if 0 <= number < chunks:
                run(op, chunks * owner + number, chunks * n_threads, thread)
            number -= chunks

    return chunks_in_stage, run_chunk


def make_run_chunks(chunks_in_stage: Any, run_chunk: Any) -> Any:
    """Make run_chunks(first, last, stage, sync, stop, chunk_index, n_chunks, thread), with the op records from address
    `first` up to `last`: run chunks of a stage until none is left; return whether the last one that was finished is
    among them.

    Chunks are counted before the thread looks for those of the next thread, which takes time: each claim counter is in
    the cache of another core.
    """

    @inline
    def run_chunks(
        first: int, last: int, stage: int, sync: int, stop: int, chunk_index: int, n_chunks: int, thread: Thread
    ) -> Any:
        each, is_last = chunks_in_stage(first, last), False
        for step in range(n_chunks):
            if is_last or atomic_load(sync + SYNC_STAGE) != stage:
                break
            owner, finished = (chunk_index + step) % n_chunks, 0
            number = claim(sync + SYNC_THREADS + SYNC_LINE_BYTES * owner, stage, each)
            while number < each and not atomic_load(stop):
                run_chunk(first, last, owner, number, n_chunks, thread)
                finished += 1
                number = claim(sync + SYNC_THREADS + SYNC_LINE_BYTES * owner, stage, each)
            if finished:
                is_last = count_finished(sync, owner, finished, each, n_chunks)
        return is_last

    return run_chunks


def execute(max_small_batch: int) -> Body:
    """Make the kernel that runs the ops first .. end - 1; `chunk_index` of `n_chunks` is the thread's number in the
    pool.

    A thread returns when all ops are done, or between two chunks if the flag at `stop` is set. If the argument
    `timestamps` is not 0, it writes timestamps of all chunks: see `localinfer.runtime.timestamps`.
    """
    chunks_of, run = make_op_functions(max_small_batch)
    chunks_in_stage, run_chunk = make_stage_functions(chunks_of, run)
    run_chunks = make_run_chunks(chunks_in_stage, run_chunk)

    @inline
    def run_serial_ops(op_records: int, op: int, end: int, stop: int, thread: Thread) -> Any:
        """Run the ops that are too small to divide, starting with `op`; return the first op of the next stage."""
        while op < end and not atomic_load(stop):
            record = op_records + RECORD_BYTES * op
            after = load(int64, record + NEXT_STAGE_OFFSET)
            if chunks_in_stage(record, op_records + RECORD_BYTES * after):
                break
            for each in range(record, op_records + RECORD_BYTES * after, RECORD_BYTES):
                run(each, 0, 1, thread)
            op = after
        return op

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        sync, stop, thread = args.sync, args.stop, Thread(scratch, args.timestamps)
        after, is_last = args.first, atomic_add(sync + SYNC_ENTERED, 1) == 0
        while True:
            if is_last:
                stage = run_serial_ops(args.op_records, after, args.end, stop, thread)
                atomic_store(sync + SYNC_STAGE, stage)
            else:
                stage = wait(sync, after, stop)
            if stage >= args.end or atomic_load(stop):
                return
            record = args.op_records + RECORD_BYTES * stage
            after = load(int64, record + NEXT_STAGE_OFFSET)
            last = args.op_records + RECORD_BYTES * after
            is_last = run_chunks(record, last, stage, sync, stop, chunk_index, n_chunks, thread)

    return body
