"""The team: every part of every op once and in order, for any number of threads, late ones, and none that comes."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from localinfer.engine.program import EXECUTE
from localinfer.engine.team import Team
from localinfer.errors import NotEnoughMemory
from localinfer.ops.calls import Call
from localinfer.plan.buffers import Region
from localinfer.plan.plan import Plan
from quant.jit import loader

N = 60  # cells of an op
COUNT = Call.of("team_kernels:count", "tokens cells:out before n errors:out")
HOLD = Call.of("team_kernels:hold", "tokens stop")


@dataclass
class Counting:
    """A program whose ops count in cells, and a team for it."""

    plan: Plan
    team: Team
    cells: list[Region]
    errors: Region

    def assert_counted(self, runs: int) -> None:
        for region in self.cells:
            np.testing.assert_array_equal(region.view(np.int64), runs)
        assert self.errors.view(np.int64)[0] == 0


@contextmanager
def counting(threads: int, ops: int = 200) -> Iterator[Counting]:
    """Stages of one op or of several, which are cut into any number of parts; some are too small to share."""
    random, plan = np.random.default_rng(0), Plan(1, 1, threads, threads, passes=1)
    errors, cells = plan.region(8), [plan.region(8 * N) for _ in range(ops)]
    before: Region | int = 0
    for number, region in enumerate(cells):
        meets = bool(random.integers(2)) or number + 1 == ops
        alone = meets and (number == 0 or plan.ops[-1].meet)
        rounds = int(random.integers(1, 9)), int(random.integers(0 if alone else 1, 4))
        plan.op(
            f"op {number}", COUNT, plan.tokens, rounds=rounds, meet=meets, cells=region, before=before, n=N,
            errors=errors,
        )  # fmt: skip
        before = region if meets else before
    with ready(plan) as team:
        yield Counting(plan, team, cells, errors)


@contextmanager
def ready(plan: Plan) -> Iterator[Team]:
    addresses, _ = loader.addresses([EXECUTE, *plan.kernels], None)
    team = Team(addresses[EXECUTE], plan.ready(addresses), plan.stop.view(np.int64), plan.scratches)
    try:
        yield team
    finally:
        team.close()


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("tokens", [1, 100])
def test_every_part_runs_once_and_when_its_turn_has_come(threads: int, tokens: int) -> None:
    with counting(threads) as c:
        c.plan.tokens.set(tokens)
        for _ in range(100):
            c.team.run(0, len(c.plan.ops), c.plan.members)
        c.assert_counted(100)


def test_a_run_may_be_some_of_the_ops() -> None:
    with counting(threads=3) as c:
        half = next(number for number, op in enumerate(c.plan.ops, 1) if number > 100 and op.meet)
        c.team.run(0, half, 3)
        assert [int(region.view(np.int64).sum()) for region in c.cells] == [N] * half + [0] * (200 - half)
        c.team.run(half, 200, 2)
        c.assert_counted(1)


@pytest.mark.parametrize("comes", [0, 3])
def test_nobody_waits_for_a_thread(comes: int) -> None:
    with counting(threads=4) as c:
        record, execute = c.team.prepare(0, len(c.plan.ops)), c.team.execute
        execute(record, comes, 4, 0)
        c.assert_counted(1)
        for late in range(4):
            execute(record, late, 4, 0)
        c.assert_counted(1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that interrupts")
@pytest.mark.parametrize("rounds", [0, 1, 8])
def test_all_threads_leave_when_they_are_told_to(rounds: int) -> None:
    plan = Plan(1, 1, 16, 16, passes=1)
    for _ in range(3):
        plan.op("hold", HOLD, plan.tokens, rounds=(rounds, rounds), stop=plan.stop)
    with ready(plan) as team:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for _ in range(5):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                start = time.perf_counter()
                with pytest.raises(KeyboardInterrupt):
                    team.run(0, 3, 16)
                assert time.perf_counter() - start <= 0.02 + 0.25
        finally:
            signal.signal(signal.SIGALRM, before)


def test_a_thread_that_cannot_be_started_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    start, before = threading.Thread.start, threading.active_count()

    def limited(thread: threading.Thread) -> None:
        if threading.active_count() > before + 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(NotEnoughMemory, match=r"^thread 4 of 16: can't start new thread$"), counting(threads=16):
        pass
    assert threading.active_count() == before


def test_an_idle_team_takes_no_time() -> None:
    with counting(threads=16) as c:
        c.team.run(0, len(c.plan.ops), c.plan.members)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before <= 0.02
