"""Continuous batching: each sequence computes the same bits as alone, and does not block others."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference_models
from numpy.typing import NDArray
from server_process import wait_until
from tiny import tiny_gemma3, tiny_llama

from localinfer.errors import ContextOverflowError
from localinfer.gguf.reader import open_gguf
from localinfer.graph.cache.page_pool import OutOfPagesError, PagePool
from localinfer.options import Options
from localinfer.runtime.batch import Segment
from localinfer.runtime.decode_loop import StepInput
from localinfer.runtime.engine import Engine
from localinfer.runtime.scheduling.scheduled_engine import ScheduledEngine
from localinfer.runtime.scheduling.scheduler import Scheduler

Logits = NDArray[np.float32]
RANDOM = np.random.default_rng(0)
PREFIX = RANDOM.integers(0, 250, 90).tolist()
LENGTHS = [150, 5, 97, 64, 1, 129]
PROMPTS = [[*PREFIX[: n // 2], *RANDOM.integers(0, 250, n - n // 2).tolist()] for n in LENGTHS]


def reference_model(name: str, path: Path, type: str) -> Path:
    """Write a checkpoint with features that tiny models lack."""
    return checkpoints.as_type(reference_models.checkpoint(name, path.parent), path, type)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "f16": (tiny_llama, {}),
    "quantized": (tiny_llama, {"cache_type_k": "q8_0", "cache_type_v": "q4_0", "type": "Q4_K"}),
    "sliding": (tiny_gemma3, {"batch_size": 32}),
    "ring": (tiny_llama, {"ctx_policy": "ring", "ctx_size": 64, "batch_size": 32}),
    "convolutions": (partial(reference_model, "lfm2"), {}),
    "delta": (partial(reference_model, "qwen35"), {}),
    "add": (partial(reference_model, "mamba2"), {}),
    "scan": (partial(reference_model, "mamba"), {}),
    "wkv": (partial(reference_model, "rwkv7"), {}),
    "wkv6": (partial(reference_model, "rwkv6"), {}),
    "shared keys": (partial(reference_model, "gemma4"), {"batch_size": 32}),
}
SEQUENCES = len(PROMPTS)


@pytest.fixture(params=CASES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    tiny, arguments_ = CASES[request.param]
    options = {"threads": 2, "ctx_size": 200, "parallel": SEQUENCES} | arguments_
    path = tiny(tmp_path / "m.gguf", type=options.pop("type", "Q8_0"))
    with contextlib.closing(Engine.load(open_gguf(path), Options(**options))) as running:
        yield running


def evaluate_alone(engine: Engine, tokens: Sequence[int], n_answer: int) -> list[Logits]:
    """Return the logits after a prompt, and after each of some answer tokens."""
    engine.reset()
    logits = [engine.evaluate(tokens).copy()]
    for _ in range(n_answer):
        logits.append(engine.evaluate([int(logits[-1].argmax())]).copy())
    engine.reset()
    return logits


def test_segments_are_bit_identical_to_separate_evaluation(engine: Engine) -> None:
    """Slices of prompts share batches with single tokens of others."""
    expected = [evaluate_alone(engine, prompt, 0)[0] for prompt in PROMPTS]
    sequences = [engine.runner.new_sequence() for _ in PROMPTS]
    while remaining := [(s, p) for s, p in zip(sequences, PROMPTS, strict=True) if len(s) < len(p)]:
        sizes = [
            1 + (5 * number + 3 * len(s)) % (engine.graph.batch // SEQUENCES) for number, (s, _) in enumerate(remaining)
        ]
        segments = [
            Segment(s, np.array(p[len(s) : len(s) + n], np.int32)) for (s, p), n in zip(remaining, sizes, strict=True)
        ]
        ends = np.cumsum([len(each.ids) for each in segments])
        logits = engine.runner.evaluate_segments(segments, (ends - 1).astype(np.int32)).copy()
        for (s, p), row in zip(remaining, logits, strict=True):
            if len(s) == len(p):
                np.testing.assert_array_equal(row, expected[sequences.index(s)])


def test_batched_answers_are_bit_identical_to_separate_ones(engine: Engine) -> None:
    expected = [evaluate_alone(engine, prompt, 20) for prompt in PROMPTS]
    scheduler = Scheduler(engine.runner)

    def answer(scheduled: ScheduledEngine, prompt: list[int], expected: list[Logits]) -> None:
        for _ in range(2):  # the second run reuses cached tokens
            scheduled.reuse_prefix(prompt, len(prompt) - 1)
            logits = scheduled.evaluate(prompt[len(scheduled.sequence) :])
            for desired in expected[1:]:
                logits = scheduled.evaluate([int(logits.argmax())])
                np.testing.assert_array_equal(logits, desired)
            scheduled.mark_idle()

    with ThreadPoolExecutor(SEQUENCES) as threads:
        list(threads.map(answer, [ScheduledEngine(scheduler) for _ in PROMPTS], PROMPTS, expected))


class Greedy:
    """A decode loop that takes the most probable token for `steps` steps. It may raise an error at one of them."""

    def __init__(self, first: int, steps: int, breaks_at: int = -1) -> None:
        self.ids, self.steps, self.breaks_at = [first], steps, breaks_at

    def next_tokens(self) -> StepInput:
        return StepInput(self.ids[-1:])

    def process_logits(self, logits: Logits) -> bool:
        if len(self.ids) == self.breaks_at:
            raise ArithmeticError("broken")
        self.ids.append(int(logits[0].argmax()))
        return len(self.ids) <= self.steps


def first_token(scheduled: ScheduledEngine, prompt: Sequence[int]) -> int:
    """Return the first token of an answer."""
    scheduled.reuse_prefix(prompt, len(prompt) - 1)
    return int(scheduled.evaluate(prompt[len(scheduled.sequence) :]).argmax())


def test_decode_loops_are_identical_to_separate_ones(engine: Engine) -> None:
    """Some loops run to their end, some are abandoned, and one raises an error."""
    expected = [[int(row.argmax()) for row in evaluate_alone(engine, prompt, 20)] for prompt in PROMPTS]
    scheduler = Scheduler(engine.runner)

    def answer(number: int, scheduled: ScheduledEngine) -> None:
        prompt, steps = PROMPTS[number], 20 - 3 * number
        for breaks_at in (-1, number - 1, -1):
            loop = Greedy(first_token(scheduled, prompt), 20, breaks_at)
            with contextlib.suppress(ArithmeticError):
                for _ in range(steps):
                    scheduled.run_step(loop)
            if breaks_at > 0:
                assert len(loop.ids) == breaks_at
            scheduled.mark_idle()
            used = len(loop.ids) if breaks_at > 0 else steps
            assert loop.ids == expected[number][: len(loop.ids)]
            assert scheduled.sequence.tokens == [*prompt, *loop.ids[:used]]

    with ThreadPoolExecutor(SEQUENCES) as threads:
        list(threads.map(answer, range(SEQUENCES), [ScheduledEngine(scheduler) for _ in PROMPTS]))


def test_next_step_starts_before_it_is_requested(tmp_path: Path) -> None:
    """Exactly one step starts early."""
    with contextlib.closing(Engine.load(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(parallel=2))) as engine:
        scheduled = ScheduledEngine(Scheduler(engine.runner))
        loop = Greedy(first_token(scheduled, PREFIX), 9)
        for step in range(1, 4):
            scheduled.run_step(loop)
            assert wait_until(lambda used=step + 2: len(loop.ids) == used, 5)
            time.sleep(0.02)
            assert len(loop.ids) == step + 2


def test_only_a_few_steps_start_early(tmp_path: Path) -> None:
    """This also holds for slow threads. Unused steps of an abandoned loop are discarded."""
    count, steps, extra = 8, 25, 3
    options = Options(threads=2, ctx_size=200, parallel=count)
    with contextlib.closing(Engine.load(open_gguf(tiny_llama(tmp_path / "m.gguf")), options)) as engine:
        prompts = [PREFIX[: 9 + 5 * number] for number in range(count)]
        expected = [[int(row.argmax()) for row in evaluate_alone(engine, prompt, steps + extra)] for prompt in prompts]
        scheduler = Scheduler(engine.runner)

        def answer(number: int, scheduled: ScheduledEngine) -> int:
            loop, maximum = Greedy(first_token(scheduled, prompts[number]), 99), 0
            for step in range(1, steps):
                scheduled.run_step(loop)
                time.sleep(0.001 * number)
                maximum = max(maximum, len(loop.ids) - 1 - step)
            scheduled.mark_idle()
            assert loop.ids == expected[number][: len(loop.ids)]
            assert scheduled.sequence.tokens == [*prompts[number], *loop.ids[: steps - 1]]
            return maximum

        with ThreadPoolExecutor(count) as threads:
            assert max(threads.map(answer, range(count), [ScheduledEngine(scheduler) for _ in prompts])) <= extra


def test_scheduler_thread_ends_when_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.runtime.scheduling.scheduler_thread.IDLE_SECONDS", 0.05)
    with contextlib.closing(Engine.load(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(parallel=2))) as engine:
        expected, scheduled = evaluate_alone(engine, PREFIX, 0)[0], ScheduledEngine(Scheduler(engine.runner))
        for _ in range(2):
            np.testing.assert_array_equal(scheduled.evaluate(PREFIX), expected)
            scheduled.reset()
            assert wait_until(lambda: not any(each.name == "localinfer-scheduler" for each in threading.enumerate()), 5)


def test_shared_prefix_is_evaluated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sequences request the prefix before any of them has evaluated it."""
    path = tiny_llama(tmp_path / "m.gguf")
    prompts = [[*PREFIX, number, 7, 9] for number in range(6)]
    with contextlib.closing(Engine.load(open_gguf(path), Options(threads=2, ctx_size=200, parallel=6))) as engine:
        expected = [evaluate_alone(engine, prompt, 0)[0] for prompt in prompts]
        scheduler, computed, compute = Scheduler(engine.runner), [], engine.runner.evaluate_segments

        def counted(segments: Sequence[Segment], rows: NDArray[np.int32]) -> Logits:
            computed.append(sum(len(each.ids) for each in segments))
            return compute(segments, rows)

        monkeypatch.setattr(engine.runner, "evaluate_segments", counted)

        def read(scheduled: ScheduledEngine, prompt: list[int]) -> Logits:
            with scheduled.lock:
                scheduled.reuse_prefix(prompt, len(prompt) - 1)
                time.sleep(0.02)  # delays the request
                return scheduled.evaluate(prompt[len(scheduled.sequence) :])

        with ThreadPoolExecutor(6) as threads:
            actual = list(threads.map(read, [ScheduledEngine(scheduler) for _ in prompts], prompts))
        np.testing.assert_array_equal(actual, expected)
        assert sum(computed) == len(PREFIX) + 6 * 3


def test_prefix_reservation_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.runtime.scheduling.pending_prompts.RESERVATION_SECONDS", 0.05)
    path = tiny_llama(tmp_path / "m.gguf")
    with contextlib.closing(Engine.load(open_gguf(path), Options(threads=2, ctx_size=200, parallel=2))) as engine:
        expected = evaluate_alone(engine, PREFIX, 0)[0]
        scheduler = Scheduler(engine.runner)
        silent, other = ScheduledEngine(scheduler), ScheduledEngine(scheduler)
        silent.reuse_prefix(PREFIX, len(PREFIX) - 1)
        other.reuse_prefix(PREFIX, len(PREFIX) - 1)
        np.testing.assert_array_equal(other.evaluate(PREFIX), expected)


def test_forks_are_independent(engine: Engine) -> None:
    """Both sequences append to the shared tokens and rewind into them."""
    first, second, third = PREFIX, [*PREFIX[:70], *PROMPTS[2][50:]], [*PREFIX[:33], 1, 2]
    expected = [evaluate_alone(engine, tokens, 5) for tokens in (first, second, third)]
    one = engine.runner.new_sequence()
    feed(engine, one, first)
    two, three = one.fork(), one.fork()
    for fork, n in ((two, 70), (three, 33)):
        fork.rewind(n)
    for desired, sequence, tokens in zip(expected, (one, two, three), (first, second, third), strict=True):
        rows = feed(engine, sequence, tokens[len(sequence) :]) if len(sequence) < len(tokens) else desired[0]
        np.testing.assert_array_equal(rows, desired[0])
    for before, after in zip(range(5), range(1, 6), strict=True):
        for desired, sequence in zip(expected, (one, two, three), strict=True):
            np.testing.assert_array_equal(feed(engine, sequence, [int(desired[before].argmax())]), desired[after])
    for sequence in (one, two, three):
        sequence.reset()
    model_graph = engine.compiled_graph.model_graph
    pools = [each.pages for each in (*model_graph.attention.rings.values(), model_graph.states)]
    assert all(pool.n_free == len(pool) for pool in pools)


def feed(engine: Engine, sequence: Any, tokens: Sequence[int]) -> Logits:
    for first in range(0, len(tokens), engine.graph.batch):
        ids = np.array(tokens[first : first + engine.graph.batch], np.int32)
        logits = engine.runner.evaluate_segments([Segment(sequence, ids)], np.array([len(ids) - 1], np.int32))
    return logits[0].copy()


def test_pages_are_reference_counted() -> None:
    pages = PagePool(2)
    assert (pages.allocate(), pages.allocate(), pages.n_free) == (0, 1, 0)
    with pytest.raises(OutOfPagesError):
        pages.allocate()
    pages.retain(1)
    pages.release(1)
    assert (pages.is_shared(1), pages.n_free) == (False, 0)
    pages.release(1)
    pages.release(0)
    assert pages.allocate() == 0


def test_single_sequence_runs_in_its_own_thread(tmp_path: Path) -> None:
    """Steps run in the caller's thread while no other sequence has requests."""
    with (
        contextlib.closing(Engine.load(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(parallel=2))) as engine,
        ThreadPoolExecutor(1, "own") as own,
        ThreadPoolExecutor(1, "other") as others,
    ):
        expected = [
            [int(row.argmax()) for row in evaluate_alone(engine, prompt, 60)] for prompt in (PREFIX, PREFIX[:7])
        ]
        scheduler = Scheduler(engine.runner)
        one, other = ScheduledEngine(scheduler), ScheduledEngine(scheduler)
        loop, other_loop = Greedy(first_token(one, PREFIX), 99), Greedy(first_token(other, PREFIX[:7]), 99)
        other.mark_idle()
        threads = set[str]()
        engine.compiled_graph.idle_work.add([1], lambda: threads.add(threading.current_thread().name))

        def follow(steps: int) -> set[str]:
            threads.clear()
            own.submit(lambda: [one.run_step(loop) for _ in range(steps)]).result()
            return set(threads)

        assert follow(5) == {"own_0"}
        is_started, is_seen = threading.Event(), threading.Event()

        def run_until_seen() -> None:
            for _ in range(50):
                other.run_step(other_loop)
                is_started.set()
                if is_seen.is_set():
                    return

        other_steps = others.submit(run_until_seen)
        is_started.wait(5)
        assert any("localinfer-scheduler" in follow(1) for _ in range(30))
        is_seen.set()
        other_steps.result()
        other.mark_idle()
        follow(3)  # some of these may have been first_token in other_loop
        assert follow(3) == {"own_0"}
        assert loop.ids == expected[0][: len(loop.ids)]
        assert other_loop.ids == expected[1][: len(other_loop.ids)]


@pytest.mark.parametrize("position", ["next_tokens", "process_logits"])
@pytest.mark.parametrize("error", [ArithmeticError, SystemExit])
def test_failed_direct_step_does_not_block_others(tmp_path: Path, position: str, error: type[BaseException]) -> None:
    with (
        contextlib.closing(Engine.load(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(parallel=2))) as engine,
        ThreadPoolExecutor(1) as own,
    ):
        expected = [int(row.argmax()) for row in evaluate_alone(engine, PREFIX, 3)]
        scheduled = ScheduledEngine(Scheduler(engine.runner))

        def fail(*_: object) -> None:
            raise error

        broken = Greedy(first_token(scheduled, PREFIX), 99)
        setattr(broken, position, fail)
        with pytest.raises(error):
            own.submit(scheduled.run_step, broken).result()
        loop = Greedy(first_token(scheduled, PREFIX), 99)
        for _ in range(3):
            own.submit(scheduled.run_step, loop).result()
        assert loop.ids == expected


def test_close_waits_for_a_direct_step(tmp_path: Path) -> None:
    with (
        contextlib.closing(Engine.load(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(parallel=2))) as engine,
        ThreadPoolExecutor(1) as own,
    ):
        scheduled = ScheduledEngine(Scheduler(engine.runner))
        loop = Greedy(first_token(scheduled, PREFIX), 99)
        is_processing, may_continue, process = threading.Event(), threading.Event(), loop.process_logits

        def slow(logits: Logits) -> bool:
            is_processing.set()
            may_continue.wait(5)
            return process(logits)

        loop.process_logits = slow  # type: ignore[method-assign]
        step = own.submit(scheduled.run_step, loop)
        is_processing.wait(5)
        closing = ThreadPoolExecutor(1).submit(scheduled.close)
        time.sleep(0.05)
        assert not closing.done()
        may_continue.set()
        step.result()
        closing.result()
        assert not scheduled.sequence.tokens


def test_full_context_does_not_block_others(tmp_path: Path) -> None:
    """One of two sequences reaches the end of the context."""
    options = Options(parallel=2, ctx_size=128)
    with contextlib.closing(Engine.load(open_gguf(tiny_llama(tmp_path / "m.gguf")), options)) as engine:
        prompts = [PREFIX[:64], PREFIX[:7]]
        expected = [[int(row.argmax()) for row in evaluate_alone(engine, prompt, 64)] for prompt in prompts]
        scheduler = Scheduler(engine.runner)
        running = [ScheduledEngine(scheduler) for _ in prompts]
        loops = [Greedy(first_token(scheduled, prompt), 99) for scheduled, prompt in zip(running, prompts, strict=True)]

        def follow(scheduled: ScheduledEngine, loop: Greedy) -> type[BaseException] | None:
            try:
                for _ in range(70):
                    scheduled.run_step(loop)
            except ContextOverflowError as error:
                return type(error)
            finally:
                scheduled.mark_idle()
            return None

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(follow, running, loops)) == [ContextOverflowError, None]
        assert loops[0].ids == expected[0]
        assert loops[1].ids[:65] == expected[1]
