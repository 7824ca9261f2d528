"""A discrete-event simulation of the executor (`localinfer.kernels.executor`), with the same claims, in the same order.

Each simulated thread is a generator that follows the executor's code. It yields the time at which it continues, or None
while it waits for the memory bus or for the next stage. What a thread reads and writes takes effect when the access
begins; the accesses to a cache line happen one after the other (`CacheLine`).

Core time is seconds times the speed of a core, so a chunk takes the same core time on every core.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

from localinfer.evaluation.simulation.shared_resources import CacheLine, Latencies, MemoryBus
from localinfer.kernels.layout import SYNC_GROUP

CLAIMED = 1 << 20  # of a claim counter: see CLAIMED_BITS of the executor

Moments = Iterator[float | None]


class OpChunks(NamedTuple):
    """The chunks of an op: their seconds on a core of speed 1, of which each thread owns `per_thread`, and the bytes
    per second that they read from memory. With `per_thread` 0, one thread runs the op alone, as a single chunk."""

    seconds: Sequence[float]
    per_thread: int
    rate: float = 0.0


class Machine(NamedTuple):
    """A simulated machine: the speed of the core of each thread, and what the cores share.

    Thread number n starts n * `thread_interval` seconds after the first one.
    """

    speeds: Sequence[float]
    bandwidth: float = math.inf
    latencies: Latencies = Latencies()
    thread_interval: float = 0.0

    @property
    def total_speed(self) -> float:
        """The sum of the speeds of all cores."""
        return sum(self.speeds)


@dataclass(slots=True)
class CoreTime:
    """What cores spend on an op, in core seconds."""

    work: float = 0.0  # running its chunks
    smaller_chunks: float = 0.0  # running its chunks longer than in one thread, because they are smaller
    memory: float = 0.0  # slowed down, because all cores together want to read more than the memory bandwidth
    serial: float = 0.0  # idle while one thread runs it alone
    few_chunks: float = 0.0  # idle, because its longest chunk takes more than a thread's share of the stage
    end_of_stage: float = 0.0  # idle until its last chunk is finished
    synchronization: float = 0.0  # claiming chunks, and publishing the next stage

    def __add__(self, other: "CoreTime") -> "CoreTime":
        return CoreTime(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, factor: float) -> "CoreTime":
        return CoreTime(*(factor * each for each in astuple(self)))

    @property
    def total(self) -> float:
        """The sum of all fields."""
        seconds: tuple[float, ...] = astuple(self)
        return sum(seconds)


class ChunkRun(NamedTuple):
    """A chunk that was run: the thread, the op and the number of the chunk among those of the op."""

    thread: int
    op: int
    chunk: int


class Simulation(NamedTuple):
    """The result of a simulated run: its duration, the core time of each op, the core time before and after all ops,
    and the chunks in the order in which they began."""

    seconds: float
    ops: Mapping[int, CoreTime]
    outside: float
    chunks: Sequence[ChunkRun]


class Stage(NamedTuple):
    """Ops that run side by side, and the chunks per thread of all of them together; 0 if one thread runs them alone."""

    ops: Sequence[int]
    per_thread: int
    has_few_chunks: bool


class SimulatedExecutor:
    """The simulation of one run of `ops`. Those up to, and including, one of `barriers` form a stage."""

    def __init__(self, machine: Machine, ops: Sequence[OpChunks], barriers: Sequence[bool]) -> None:
        self._machine, self._ops = machine, ops
        self._stages = list(find_stages(machine, ops, barriers))
        self._stage_of = {op: stage for stage in self._stages for op in stage.ops}
        self._n_threads = len(machine.speeds)
        self._bus = MemoryBus(machine.bandwidth)
        self._entered, self._finished, self._stage = (CacheLine(machine.latencies) for _ in range(3))
        self._stage.value = -1
        self._claims = [CacheLine(machine.latencies) for _ in machine.speeds]
        self._groups = [CacheLine(machine.latencies) for _ in machine.speeds[::SYNC_GROUP]]
        self._now = 0.0
        self._events: list[tuple[float, int]] = []  # when a thread continues, and its number
        self._waiting: dict[int, float] = {}  # threads that wait for the next stage, and since when
        self._last_chunk = 0.0, 0  # when the last chunk ended, and its op
        self._serial_runs: list[tuple[int, float, float]] = []  # after that chunk: op, begin and end
        self._times: dict[int, CoreTime] = defaultdict(CoreTime)
        self._runs: list[ChunkRun] = []

    def run(self) -> Simulation:
        """Simulate the run."""
        threads = [self._run_thread(number) for number in range(self._n_threads)]
        self._events = [(number * self._machine.thread_interval, number) for number in range(self._n_threads)]
        while True:
            bus_end = self._bus.next_end()
            if self._events and self._events[0][0] <= bus_end:
                self._now, number = heapq.heappop(self._events)
            elif bus_end < math.inf:
                self._now, number = self._bus.finish()
            else:
                break
            moment = next(threads[number], None)
            if moment is not None:
                heapq.heappush(self._events, (moment, number))
        spent = sum(each.total for each in self._times.values())
        return Simulation(self._now, self._times, self._now * self._machine.total_speed - spent, self._runs)

    # --- a thread, as in the executor ---

    def _run_thread(self, thread: int) -> Moments:
        is_last, stage = self._entered.value == 0, 0
        self._entered.value += 1
        yield self._entered.write(thread, self._now)
        while True:
            if is_last:
                while stage < len(self._stages) and not self._stages[stage].per_thread:
                    yield from self._run_serial_ops(thread, stage)
                    stage += 1
                self._publish(thread, stage)
                yield self._stage.free_at
            else:
                yield self._wait(thread, stage)
                stage = self._stage.value
            if stage == len(self._stages):
                return
            is_last = yield from self._run_chunks(thread, stage)
            stage += 1

    def _run_serial_ops(self, thread: int, stage: int) -> Moments:
        """Run the ops of a stage that are too small to divide."""
        for op in self._stages[stage].ops:
            begin = self._now
            yield from self._run_chunk(thread, op, 0)
            self._serial_runs.append((op, begin, self._now))

    def _run_chunks(self, thread: int, stage: int) -> Generator[float | None, None, bool]:
        """Run chunks of a stage until none is left; return whether the last one that was finished is among them."""
        for step in range(self._n_threads):
            if self._stage.value != stage:
                break
            owner, finished = (thread + step) % self._n_threads, 0
            while True:
                number, moment = self._claim(thread, owner, stage)
                yield self._access(thread, moment, stage)
                if number is None:
                    break
                op, index = self._find_chunk(stage, owner, number)
                yield from self._run_chunk(thread, op, index)
                self._last_chunk = self._now, op
                finished += 1
            if finished and (yield from self._count_finished(thread, owner, finished, stage)):
                return True
        return False

    def _count_finished(self, thread: int, owner: int, finished: int, stage: int) -> Generator[float, None, bool]:
        """Count finished chunks of those that belong to `owner`; return whether all of the stage are finished."""
        group, first = self._groups[owner // SYNC_GROUP], owner // SYNC_GROUP * SYNC_GROUP
        in_group = min(SYNC_GROUP, self._n_threads - first)
        group.value += finished
        is_complete = group.value == self._stages[stage].per_thread * in_group
        yield self._access(thread, group.write(thread, self._now), stage)
        if not is_complete or len(self._groups) == 1:
            group.value = 0 if is_complete else group.value
            return is_complete
        group.value = 0
        self._finished.value += 1
        is_last = self._finished.value == len(self._groups)
        yield self._access(thread, self._finished.write(thread, self._now), stage)
        self._finished.value = 0 if is_last else self._finished.value
        return is_last

    def _run_chunk(self, thread: int, op: int, index: int) -> Moments:
        chunks, speed, begin = self._ops[op], self._machine.speeds[thread], self._now
        seconds = chunks.seconds[index] / speed
        self._runs.append(ChunkRun(thread, op, index))
        if chunks.rate and self._bus.bandwidth < math.inf:
            self._bus.start(thread, seconds, chunks.rate * speed, begin)
            yield None
        else:
            yield begin + seconds
        self._times[op].work += chunks.seconds[index]
        self._times[op].memory += max(0.0, (self._now - begin - seconds) * speed)

    def _claim(self, thread: int, owner: int, stage: int) -> tuple[int | None, float]:
        """Claim one of a thread's chunks. Return its number, None if none is left, and when the claim is done."""
        line, none_taken = self._claims[owner], stage * CLAIMED
        moment, free = line.read(thread, self._now), max(line.value, none_taken)
        if free - none_taken >= self._stages[stage].per_thread:
            return None, moment
        line.value = free + 1
        return free - none_taken, line.write(thread, moment)

    def _find_chunk(self, stage: int, owner: int, number: int) -> tuple[int, int]:
        """Return the op and the index of chunk `number` of the chunks of a stage that belong to thread `owner`."""
        for op in self._stages[stage].ops:
            per_thread = self._ops[op].per_thread
            if number < per_thread:
                return op, per_thread * owner + number
            number -= per_thread
        raise IndexError(number)

    def _publish(self, thread: int, stage: int) -> None:
        """Let all threads begin with a stage. Those that wait continue when they have read its number."""
        self._stage.value = stage
        moment = self._stage.write(thread, self._now)
        if stage < len(self._stages):
            self._access(thread, moment, stage)
        for waiting, since in self._waiting.items():
            resumed = self._stage.read(waiting, moment)
            self._account_wait(waiting, since, resumed)
            heapq.heappush(self._events, (resumed, waiting))
        self._waiting.clear()
        self._serial_runs.clear()

    def _wait(self, thread: int, stage: int) -> float | None:
        """Return when a thread knows that the pool has reached a stage; None if it has to wait."""
        if self._stage.value >= stage:
            return self._access(thread, self._stage.read(thread, self._now), min(stage, len(self._stages) - 1))
        self._waiting[thread] = self._now
        return None

    # --- accounting ---

    def _access(self, thread: int, moment: float, stage: int) -> float:
        """Account the time until `moment` as synchronization in a stage; return `moment`."""
        self._times[self._stages[stage].ops[0]].synchronization += (moment - self._now) * self._machine.speeds[thread]
        return moment

    def _account_wait(self, thread: int, begin: float, end: float) -> None:
        """Account the time in which a thread has waited: for the last chunk, for serial ops, for the next stage."""
        speed, (last_end, last_op) = self._machine.speeds[thread], self._last_chunk
        chunk_wait = max(0.0, min(end, last_end) - begin)
        if self._stage_of[last_op].has_few_chunks:
            self._times[last_op].few_chunks += speed * chunk_wait
        else:
            self._times[last_op].end_of_stage += speed * chunk_wait
        serial_wait = 0.0
        for op, first, last in self._serial_runs:
            waited = max(0.0, last - max(first, begin))
            self._times[op].serial += speed * waited
            serial_wait += waited
        self._times[last_op].synchronization += speed * (end - begin - chunk_wait - serial_wait)


def find_stages(machine: Machine, ops: Sequence[OpChunks], barriers: Sequence[bool]) -> Iterator[Stage]:
    """Yield the stages of a graph."""
    members: list[int] = []
    for number, is_last in enumerate(barriers):
        members.append(number)
        if is_last:
            seconds = [each for op in members for each in ops[op].seconds]
            share = sum(seconds) / machine.total_speed
            yield Stage(members, sum(ops[op].per_thread for op in members), max(seconds, default=0.0) > share)
            members = []
