"""The executor: the threads of a team run through one program of op records (`quant.jit.record`) together.

Ops that may run side by side, such as the products of q, k and v, are a stage. The work of a stage lies in lanes, one
for each thread, and a lane is cut into parts, neighbours in memory. A thread takes the parts of its own lane, then what
other lanes still have, and counts what it has finished. Whoever counts the last part leads on: it runs the ops that are
too small to share by itself, up to the next stage that has parts for everybody, and tells the others.

So nobody ever waits for a thread, only for parts that a thread has begun. One that is slow leaves parts to others; one
that comes late finds them taken, and joins in wherever the team is by then.
"""

from collections.abc import Callable
from typing import Any

from numba import int64

from localinfer.ops.layout import (
    ENTERED,
    FINISHED,
    LANES,
    LINE,
    STAGE,
    STAMP_WORDS,
    STAMPS_BYTES,
    STAMPS_FIRST,
)
from quant.jit.record import KERNELS, NEXT, RECORD_WORDS, ROUNDS, TOKENS
from quant.jit.threads import atomic_add, atomic_load, atomic_store, atomic_swap, call, give_way, pause, ticks
from quant.jit.vectors import inline, load, store

Body = Callable[..., None]

RECORD_BYTES = 8 * RECORD_WORDS
TAKEN_BITS = 20  # the low bits of a lane's word count its parts that are taken; above them stands the stage
PATIENCE = 2000  # turns in a spin loop before the core is offered to others


@inline
def claim(lane: int, stage: int, parts: int) -> Any:
    """The number of a part of that lane that nobody else has or gets, or `parts` when there is none.

    A lane's word only grows, so one that a later stage has moved on has no part for a thread that is behind.
    """
    none_taken = stage << TAKEN_BITS
    seen = atomic_load(lane)
    while True:
        free = max(seen, none_taken)
        if free - none_taken >= parts:
            return parts
        before = atomic_swap(lane, seen, free + 1)
        if before == seen:
            return free - none_taken
        seen = before


@inline
def wait(sync: int, stage: int, stop: int) -> Any:
    """The stage that the team is at, as soon as it is that one or a later one, or all are told to stop."""
    turns = 0
    while atomic_load(sync + STAGE) < stage and not atomic_load(stop):
        pause()
        turns += 1
        if turns > PATIENCE:
            give_way()
    return atomic_load(sync + STAGE)


@inline
def stamp(op: int, begin: int, end: int, scratch: int) -> None:
    """Note when a part of an op ran, in front of the thread's scratch memory, as long as there is room."""
    stamps = scratch - STAMPS_BYTES
    count = load(int64, stamps)
    at = stamps + STAMPS_FIRST + 8 * STAMP_WORDS * count
    if at + 8 * STAMP_WORDS <= scratch:
        store(at, op)
        store(at + 8, begin)
        store(at + 16, end)
        store(stamps, count + 1)


def call_word(stamps: int) -> Any:
    """The word for calling a kernel: as it is or, with stamps, with a look at the clock before and after."""

    @inline
    def call_and_stamp(function: int, op: int, part: int, parts: int, scratch: int) -> None:
        begin = ticks()
        call(function, op, part, parts, scratch)
        stamp(op, begin, ticks(), scratch)

    return call_and_stamp if stamps else call


def op_words(few: int, stamps: int) -> Any:
    """Words for an op record, which has a kernel and a number of rounds for up to `few` tokens, and for more:

    rounds(op)                         the parts that it has in each lane, 0 if it is too small to share
    run(op, part, parts, scratch)      run a part of it
    """

    call_kernel = call_word(stamps)

    @inline
    def column(op: int) -> Any:
        return op if load(int64, load(int64, op + TOKENS)) <= few else op + 8

    @inline
    def rounds(op: int) -> Any:
        return load(int64, column(op) + ROUNDS)

    @inline
    def run(op: int, part: int, parts: int, scratch: int) -> None:
        call_kernel(load(int64, column(op) + KERNELS), op, part, parts, scratch)

    return rounds, run


def stage_words(few: int, stamps: int) -> Any:
    """Words for a stage, the op records from `first` up to `end`:

    lane_parts(first, end)                               its parts in each lane
    run_part(first, end, lane, number, lanes, scratch)   run one of them
    """
    rounds, run = op_words(few, stamps)

    @inline
    def lane_parts(first: int, end: int) -> Any:
        parts = 0
        for op in range(first, end, RECORD_BYTES):
            parts += rounds(op)
        return parts

    @inline
    def run_part(first: int, end: int, lane: int, number: int, lanes: int, scratch: int) -> None:
        for op in range(first, end, RECORD_BYTES):
            parts = rounds(op)
            if 0 <= number < parts:
                run(op, parts * lane + number, parts * lanes, scratch)
            number -= parts

    return lane_parts, run_part


def execute(few: int, stamps: int) -> Body:
    """The kernel that runs ops first .. end - 1 of a program; `part` of `parts` is a thread's number in the team.

    Every thread returns when all is done or, as soon as it is between two parts, when the flag at `stop` is set.
    With `stamps` it leaves time stamps of all that it runs: see `localinfer.engine.stamps`.
    """
    _, run = op_words(few, stamps)
    lane_parts, run_part = stage_words(few, stamps)

    @inline
    def lead(program: int, op: int, end: int, stop: int, scratch: int) -> Any:
        """Run what is too small to share, from one op on; the stage that comes then."""
        while op < end and not atomic_load(stop):
            record = program + RECORD_BYTES * op
            after = load(int64, record + NEXT)
            if lane_parts(record, program + RECORD_BYTES * after):
                break
            for each in range(record, program + RECORD_BYTES * after, RECORD_BYTES):
                run(each, 0, 1, scratch)
            op = after
        return op

    @inline
    def share(first: int, last: int, stage: int, sync: int, stop: int, part: int, parts: int, scratch: int) -> Any:
        """Run parts of a stage as long as there are any; how many."""
        finished, each = 0, lane_parts(first, last)
        for step in range(parts):
            lane = (part + step) % parts
            number = claim(sync + LANES + LINE * lane, stage, each)
            while number < each and not atomic_load(stop):
                run_part(first, last, lane, number, parts, scratch)
                finished += 1
                number = claim(sync + LANES + LINE * lane, stage, each)
        return finished

    def body(first, end, program, sync, stop, part, parts, scratch):
        after, leads = first, atomic_add(sync + ENTERED, 1) == 0
        while True:
            if leads:
                stage = lead(program, after, end, stop, scratch)
                atomic_store(sync + FINISHED, 0)
                atomic_store(sync + STAGE, stage)
            else:
                stage = wait(sync, after, stop)
            if stage >= end or atomic_load(stop):
                return
            record = program + RECORD_BYTES * stage
            after = load(int64, record + NEXT)
            last = program + RECORD_BYTES * after
            finished = share(record, last, stage, sync, stop, part, parts, scratch)
            whole = lane_parts(record, last) * parts
            leads = finished > 0 and atomic_add(sync + FINISHED, finished) + finished == whole

    return body
