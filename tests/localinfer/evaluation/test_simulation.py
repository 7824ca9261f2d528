"""`localinfer profile --simulate`: the simulated executor follows the real one, and all core time is accounted for."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_llama

from localinfer.evaluation.simulation.chunk_times import BatchChunks, measure_chunks
from localinfer.evaluation.simulation.scaling import group_times, simulate
from localinfer.evaluation.simulation.shared_resources import CacheLine, Latencies, MemoryBus
from localinfer.evaluation.simulation.simulated_executor import (
    Machine,
    OpChunks,
    SimulatedExecutor,
    Simulation,
)
from localinfer.gguf.reader import open_gguf
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.kernels.signatures import KernelSignature
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.thread_pool import POOL_KERNELS, ThreadPool
from quant.jit import loader

Run = Callable[..., tuple[int, str, str]]
NO_LATENCIES = Latencies(0.0, 0.0, 0.0)
NOTE_CHUNK = KernelSignature.parse("thread_pool_kernels:note_chunk", "tokens number runs:out count:out")
M1, HYBRID, SLOWED = [1.0] * 4 + [0.35] * 4, [1.0] * 6 + [0.6] * 8, [1.0] * 3 + [0.5]


def divided(seconds: float, threads: int, chunks: int, rate: float = 0.0) -> OpChunks:
    """Return the chunks of an op that takes `seconds` on one core; with 0 chunks, one thread runs it."""
    count = threads * chunks or 1
    return OpChunks([seconds / count] * count, chunks, rate)


def layers(threads: int, chunks: int = 32) -> tuple[list[OpChunks], list[bool]]:
    """Return the ops of ten layers: a stage of two products and one of a product, each after a serial op."""
    ops = [(2e-6, 0, True), (4e-3, chunks, False), (4e-3, chunks, True), (1e-6, 0, True), (3e-3, chunks, True)]
    return [divided(seconds, threads, each) for seconds, each, _ in ops] * 10, [barrier for *_, barrier in ops] * 10


def simulated(machine: Machine, ops: Sequence[OpChunks], barriers: Sequence[bool]) -> Simulation:
    return SimulatedExecutor(machine, ops, barriers).run()


def total(ops: Sequence[OpChunks]) -> float:
    return sum(sum(op.seconds) for op in ops)


# --- shared resources ---


def test_writes_to_a_line_happen_one_after_the_other() -> None:
    line = CacheLine(Latencies(local=1.0, transfer=10.0, next_reader=2.0))
    assert [line.write(core, now) for core, now in ((0, 0.0), (0, 5.0), (1, 6.0), (2, 7.0))] == [1.0, 6.0, 16.0, 26.0]


def test_a_line_is_read_from_the_own_cache_until_another_core_writes() -> None:
    line = CacheLine(Latencies(local=1.0, transfer=10.0, next_reader=2.0))
    line.write(0, 0.0)
    assert [line.read(core, 100.0) for core in (1, 2, 1)] == [110.0, 112.0, 101.0]
    line.write(0, 200.0)
    assert line.read(1, 300.0) == 310.0


def test_chunks_share_the_memory_bandwidth() -> None:
    """Two chunks of 4 seconds want 6 and 4 bytes per second of 5; the third starts when they have run for 4 seconds."""
    bus = MemoryBus(5.0)
    bus.start(0, 4.0, 6.0, now=0.0)
    bus.start(1, 4.0, 4.0, now=0.0)
    assert bus.next_end() == 8.0
    bus.start(2, 1.0, 0.0, now=4.0)
    assert [bus.finish() for _ in range(3)] == [(6.0, 2), (8.0, 0), (8.0, 1)]
    assert bus.next_end() == math.inf


# --- the executor ---


def test_one_thread_takes_the_sum_of_all_chunks() -> None:
    ops, barriers = layers(threads=1)
    run = simulated(Machine([1.0], latencies=NO_LATENCIES), ops, barriers)
    assert run.seconds == pytest.approx(total(ops))
    assert simulated(Machine([0.25], latencies=NO_LATENCIES), ops, barriers).seconds == pytest.approx(4 * total(ops))


@pytest.mark.parametrize("threads", [2, 7, 32])
def test_equal_threads_divide_the_work(threads: int) -> None:
    ops, barriers = layers(threads)
    serial = sum(sum(op.seconds) for op in ops if not op.per_thread)
    run = simulated(Machine([1.0] * threads, latencies=NO_LATENCIES), ops, barriers)
    assert run.seconds == pytest.approx(serial + (total(ops) - serial) / threads)


@pytest.mark.parametrize("speeds", [M1, HYBRID, SLOWED], ids=["M1", "hybrid", "slowed"])
def test_cores_of_unequal_speed_reach_95_percent(speeds: list[float]) -> None:
    ops, barriers = layers(len(speeds))
    machine = Machine(speeds)
    efficiency = total(ops) / simulated(machine, ops, barriers).seconds / machine.total_speed
    assert 0.95 <= efficiency <= 1.0
    ops, barriers = layers(len(speeds), chunks=1)
    assert total(ops) / simulated(machine, ops, barriers).seconds / machine.total_speed < 0.8


@pytest.mark.parametrize("seed", range(5))
def test_all_core_time_is_accounted_for(seed: int) -> None:
    random = np.random.default_rng(seed)
    threads = int(random.integers(1, 12))
    ops, barriers = [], []
    for number in range(60):
        barriers.append(bool(random.integers(2)) or number == 59)
        alone = barriers[-1] and (number == 0 or barriers[-2])
        chunks = int(random.integers(0 if alone else 1, 9))
        ops.append(divided(float(random.exponential(1e-5)), threads, chunks, float(random.choice((0.0, 2e9)))))
    speeds = random.uniform(0.2, 1.0, threads).tolist()
    machine = Machine(speeds, bandwidth=3e9, thread_interval=1e-6)
    run = simulated(machine, ops, barriers)
    spent = list(run.ops.values())
    assert sum(each.total for each in spent) + run.outside == pytest.approx(run.seconds * machine.total_speed)
    assert sum(each.work for each in spent) == pytest.approx(total(ops))
    assert all(min(each.memory, each.serial, each.end_of_stage, each.synchronization) > -1e-12 for each in spent)
    assert run.outside > -1e-12
    assert Counter((op, index) for _, op, index in run.chunks) == Counter(
        (op, index) for op, chunks in enumerate(ops) for index in range(len(chunks.seconds)))  # fmt: skip


def test_memory_bandwidth_limits_the_speed() -> None:
    ops, barriers = [divided(1e-3, 8, 8, rate=10e9)] * 4, [True] * 4
    run = simulated(Machine([1.0] * 8, bandwidth=20e9, latencies=NO_LATENCIES), ops, barriers)
    assert run.seconds == pytest.approx(4 * 1e-3 * 10e9 / 20e9)
    assert sum(each.memory for each in run.ops.values()) == pytest.approx(8 * run.seconds - total(ops))


def test_what_limits_a_stage_is_named() -> None:
    """A serial op; a chunk that is longer than a thread's share; a slow core, whose second chunk is stolen."""
    ops = [OpChunks([1e-3], 0), OpChunks([3e-3, 1e-3], 1), OpChunks([1e-3] * 4, 2)]
    machine = Machine([1.0, 1.0], latencies=NO_LATENCIES)
    run = simulated(machine, ops, [True] * 3)
    assert (run.ops[0].serial, run.ops[1].few_chunks) == pytest.approx((1e-3, 2e-3))
    run = simulated(machine._replace(speeds=[1.0, 0.5]), [ops[2]], [True])
    assert (run.seconds, run.ops[0].end_of_stage) == pytest.approx((3e-3, 0.5e-3))


# --- compared with the real executor ---


def test_chunks_and_their_order_are_those_of_the_executor() -> None:
    """One thread runs the chunks of four: which ops, and which part of each."""
    random, graph = np.random.default_rng(0), ComputeGraph(1, 1, 4, 4, passes=1)
    runs, count = graph.region(24 * 2000), graph.region(8)
    for number in range(60):
        barrier = bool(random.integers(2)) or number == 59
        alone = barrier and (number == 0 or graph.ops[-1].barrier)
        chunks = int(random.integers(0 if alone else 1, 9))
        graph.op(
            f"op {number}", NOTE_CHUNK, graph.tokens, chunks=(chunks, chunks), barrier=barrier, number=number,
            runs=runs, count=count,
        )  # fmt: skip
    addresses, _ = loader.load_kernels([*POOL_KERNELS, *graph.kernels(large_batch=False)], None)
    pool = ThreadPool(addresses, graph.finalize(addresses), graph.stop.view(np.int64), graph.scratch_addresses)
    pool.use_scratch(graph.scratch_addresses, alone=True)
    pool.run(0, len(graph.ops), 4)
    pool.close()
    ran = runs.view(np.int64).reshape(-1, 3)[: int(count.view(np.int64)[0])]

    ops = [divided(1.0, 4, op.chunks[0]) for op in graph.ops]
    run = simulated(Machine([1.0] * 4, thread_interval=1e9), ops, [op.barrier for op in graph.ops])
    assert {thread for thread, _, _ in run.chunks} == {0}
    assert [op for _, op, _ in run.chunks] == ran[:, 0].tolist()
    begins = [sum(ops[op].seconds[:index]) for _, op, index in run.chunks]
    np.testing.assert_allclose(ran[:, 1] / ran[:, 2], begins, atol=1e-9)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A tiny model, in batches of 8, divided for three threads."""
    options = Options(ctx_size=64, batch_size=8, threads=3, threads_batch=3)
    loaded = Engine.load(open_gguf(tiny_llama(tmp_path / "tiny.gguf")), options)
    yield loaded
    loaded.close()


def test_chunks_of_a_model(engine: Engine) -> None:
    found = measure_chunks(engine, list(range(3, 15)), [20, 21, 22], lambda _: None)
    assert {name: [(each.tokens, each.repeat) for each in batches] for name, batches in found.items()} == {
        "prefill": [(8, 1), (4, 1)], "decode": [(1, 3)]}  # fmt: skip
    for batch, is_large in ((found["prefill"][0], True), (found["decode"][0], False)):
        for op, chunks in zip(engine.graph.ops, batch.ops, strict=True):
            count = op.chunks[is_large and op.rows is not engine.graph.output_rows]
            assert (chunks.per_thread, len(chunks.seconds)) == (count, 3 * count or 1)
            assert min(chunks.seconds) >= 0
        assert batch.outside >= 0


def test_scaling_of_a_phase(engine: Engine) -> None:
    graph, ops = engine.graph.ops, [divided(3e-3, 1, 1)] * len(engine.graph.ops)
    smaller = [OpChunks([1.2e-3] * 3, 1)] * len(graph)
    batches = [[BatchChunks(1, each, outside=1e-3, repeat=5)] for each in (ops, smaller)]
    machine = Machine([1.0] * 3, latencies=NO_LATENCIES, thread_interval=1e-4)
    found = simulate("decode", machine, graph, *batches)
    assert (found.tokens, found.one_thread_seconds) == (5, pytest.approx(5 * (len(graph) * 3e-3 + 1e-3)))
    assert found.seconds == pytest.approx(5 * (len(graph) * 1.2e-3 + 1e-3 + 2e-4), rel=1e-2)
    kinds = group_times(found, graph)
    assert kinds["ffn_up"].work == pytest.approx(5 * 2 * 3e-3)
    assert kinds["ffn_up"].smaller_chunks == pytest.approx(5 * 2 * 0.6e-3)
    assert sum(each.total for each in kinds.values()) + found.outside == pytest.approx(found.core_seconds)
    assert found.efficiency == pytest.approx(found.speedup / 3)


# --- the command ---


def test_the_table(run: Run, tmp_path: Path) -> None:
    code, out, err = run(
        "profile", tiny_llama(tmp_path / "m.gguf"), "-p", 9, "-n", 2, "-t", 8, "--simulate", "--bandwidth", 40
    )
    assert code == 0
    assert out.count("with 8 threads, simulated: ") == 2
    assert out.count("of the sum of the core speeds (8): ") == 2
    headings = [line.split()[:4] for line in out.splitlines() if "synchronization" in line]
    assert headings == [["op", "of", "total", "work"]] * 2
    totals = [line.split()[1] for line in out.splitlines() if line.strip().startswith(("total", "before"))]
    assert len(totals) == 4
    assert "memory bandwidth: 40.0 GB/s" in err


def test_json(run: Run, tmp_path: Path) -> None:
    speeds = "1,1,0.5"
    arguments = ["-p", 0, "-n", 2, "--simulate", "--core-speeds", speeds, "--bandwidth", 0, "--json"]
    code, out, _ = run("profile", tiny_llama(tmp_path / "m.gguf"), *arguments)
    found = json.loads(out)
    assert (code, found["core_speeds"], found["bytes_per_second"]) == (0, [1.0, 1.0, 0.5], None)
    [phase] = found["phases"]
    assert (phase["name"], phase["tokens"]) == ("decode", 2)
    assert phase["core_seconds"] == pytest.approx(2.5 * phase["seconds"])
    spent = sum(sum(kind.values()) for kind in phase["kinds"].values())
    assert spent + phase["outside_core_seconds"] == pytest.approx(phase["core_seconds"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--simulate"], "--simulate: needs --threads or --core-speeds"),
        (["--simulate", "-t", "0"], "--simulate: needs --threads or --core-speeds"),
        (["--simulate", "-t", "3", "--core-speeds", "1,1"], "--core-speeds: has 2 cores for --threads 3"),
        (["--simulate", "--core-speeds", "1,x"], "--core-speeds: 'x' is not a number from 0.001 to 1000"),
        (["--simulate", "--core-speeds", "1,nan"], "--core-speeds: 'nan' is not"),
        (["--simulate", "--core-speeds", "1,0"], "--core-speeds: '0' is not"),
        (["--simulate", "--core-speeds", ",".join(["1"] * 513)], "--core-speeds: at most 512 cores"),
        (["--simulate", "-t", "2", "--bandwidth", "-1"], "--bandwidth"),
        (["--simulate", "-t", "2", "--bandwidth", "nan"], "--bandwidth: must be a finite number, not nan"),
        (["--simulate", "-t", "2", "--trace", "t.json"], "--trace: not with --simulate"),
        (["--simulate", "-t", "2", "-tb", "3"], "--threads-batch: not with --simulate"),
        (["--core-speeds", "1,1"], "--core-speeds: only with --simulate"),
        (["--bandwidth", "30"], "--bandwidth: only with --simulate"),
    ],
)
def test_usage(run: Run, arguments: list[str], problem: str) -> None:
    code, out, err = run("profile", "no-model.gguf", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert problem in err
