"""The thread pool: every chunk of every op runs once and in order, for any number of threads, late and missing ones."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from localinfer.errors import NotEnoughMemoryError
from localinfer.graph.ops.buffers import Region
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.kernels.signatures import KernelSignature
from localinfer.machine import resources
from localinfer.runtime import thread_pool
from localinfer.runtime.thread_pool import POOL_KERNELS, ThreadPool
from quant.jit import loader

N = 60  # counters of an op
COUNT = KernelSignature.parse("thread_pool_kernels:count", "tokens counters:out before n errors:out")
HOLD = KernelSignature.parse("thread_pool_kernels:hold", "tokens stop")


@dataclass
class Counting:
    """A graph whose ops count in counters, and a pool for it."""

    graph: ComputeGraph
    pool: ThreadPool
    counters: list[Region]
    errors: Region

    def assert_counted(self, runs: int) -> None:
        for region in self.counters:
            np.testing.assert_array_equal(region.view(np.int64), runs)
        assert self.errors.view(np.int64)[0] == 0


@contextmanager
def counting(threads: int, ops: int = 200) -> Iterator[Counting]:
    """Open a graph with stages of one or several ops, which are split into any number of chunks."""
    random, graph = np.random.default_rng(0), ComputeGraph(1, 1, threads, threads, passes=1)
    errors, counters = graph.region(8), [graph.region(8 * N) for _ in range(ops)]
    before: Region | int = 0
    for number, region in enumerate(counters):
        barrier = bool(random.integers(2)) or number + 1 == ops
        alone = barrier and (number == 0 or graph.ops[-1].barrier)
        rounds = int(random.integers(1, 9)), int(random.integers(0 if alone else 1, 4))
        graph.op(
            f"op {number}", COUNT, graph.tokens, chunks=rounds, barrier=barrier, counters=region, before=before, n=N,
            errors=errors,
        )  # fmt: skip
        before = region if barrier else before
    with ready(graph) as pool:
        yield Counting(graph, pool, counters, errors)


@contextmanager
def ready(graph: ComputeGraph) -> Iterator[ThreadPool]:
    kernels = [kernel for large_batch in (False, True) for kernel in graph.kernels(large_batch=large_batch)]
    addresses, _ = loader.load_kernels([*POOL_KERNELS, *kernels], None)
    pool = ThreadPool(addresses, graph.finalize(addresses), graph.stop.view(np.int64), graph.scratch_addresses)
    try:
        yield pool
    finally:
        pool.close()


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("tokens", [1, 100])
def test_every_chunk_runs_once_and_in_order(threads: int, tokens: int) -> None:
    with counting(threads) as c:
        c.graph.tokens.set(tokens)
        for _ in range(100):
            c.pool.run(0, len(c.graph.ops), c.graph.n_threads)
        c.assert_counted(100)


@pytest.mark.parametrize("waits", [1, 10_000_000])
def test_workers_sleep_or_wait_between_runs(monkeypatch: pytest.MonkeyPatch, waits: int) -> None:
    monkeypatch.setattr(thread_pool, "WORKER_WAITS", waits)
    monkeypatch.setattr(resources, "available_cpus", lambda: 3)
    asleep = list[int]()
    with counting(threads=3) as c:
        for run in range(60):
            c.pool.run(0, len(c.graph.ops), 3 - run % 2)
            asleep += c.pool._asleep[1 : 3 - run % 2].tolist()
            time.sleep(1e-3 * (run % 3))
        c.assert_counted(60)
    assert asleep[:2] == [1, 1], "threads are asleep before their first run"
    assert (sum(asleep) > 2) == (waits == 1)


def test_run_of_a_range_of_ops() -> None:
    with counting(threads=3) as c:
        half = next(number for number, op in enumerate(c.graph.ops, 1) if number > 100 and op.barrier)
        c.pool.run(0, half, 3)
        assert [int(region.view(np.int64).sum()) for region in c.counters] == [N] * half + [0] * (200 - half)
        c.pool.run(half, 200, 2)
        c.assert_counted(1)


@pytest.mark.parametrize("first", [0, 3])
def test_missing_threads_do_not_block(first: int) -> None:
    with counting(threads=4) as c:
        call, execute = c.pool.prepare(0, len(c.graph.ops)), c.pool.execute
        execute(call, first, 4, 0)
        c.assert_counted(1)
        for late in range(4):
            execute(call, late, 4, 0)
        c.assert_counted(1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that interrupts")
@pytest.mark.parametrize("rounds", [0, 1, 8])
def test_stop_flag_ends_all_threads(rounds: int) -> None:
    graph = ComputeGraph(1, 1, 16, 16, passes=1)
    for _ in range(3):
        graph.op("hold", HOLD, graph.tokens, chunks=(rounds, rounds), stop=graph.stop)
    with ready(graph) as pool:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for _ in range(5):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                start = time.perf_counter()
                with pytest.raises(KeyboardInterrupt):
                    pool.run(0, 3, 16)
                assert time.perf_counter() - start <= 5  # threads may wait for a core on a busy machine
        finally:
            signal.signal(signal.SIGALRM, before)


def test_thread_start_failure_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    start, before = threading.Thread.start, threading.active_count()

    def limited(thread: threading.Thread) -> None:
        if threading.active_count() > before + 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(NotEnoughMemoryError, match=r"^thread 4 of 16: can't start new thread$"), counting(threads=16):
        pass
    assert threading.active_count() == before


def test_idle_pool_uses_no_cpu_time() -> None:
    with counting(threads=16) as c:
        c.pool.run(0, len(c.graph.ops), c.graph.n_threads)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before <= 0.02
