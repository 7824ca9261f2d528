"""Cancellation of scheduled requests: by Ctrl-C, exit of the process, errors, and garbage collection."""

import contextlib
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny import tiny_llama

import localinfer
from localinfer.errors import LocalInferError, NotEnoughMemoryError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.batch import Segment
from localinfer.runtime.decode_loop import StepInput
from localinfer.runtime.engine import Engine
from localinfer.runtime.scheduling.scheduled_engine import ScheduledEngine
from localinfer.runtime.scheduling.scheduler import Scheduler

PROMPT = np.random.default_rng(0).integers(0, 250, 40).tolist()
Logits = NDArray[np.float32]


class GreedyLoop:
    """A decode loop that takes the most probable token. `then` is called with the number of tokens."""

    def __init__(self, scheduled: ScheduledEngine, then: Callable[[int], object] = lambda _: None) -> None:
        scheduled.reuse_prefix(PROMPT, len(PROMPT) - 1)
        self.ids, self.then = [int(scheduled.evaluate(PROMPT[len(scheduled.sequence) :]).argmax())], then

    def next_tokens(self) -> StepInput:
        return StepInput(self.ids[-1:])

    def process_logits(self, logits: Logits) -> bool:
        self.ids.append(int(logits[0].argmax()))
        self.then(len(self.ids))
        return True


@pytest.fixture(name="engine")
def opened(tmp_path: Path) -> Iterator[Engine]:
    options = Options(threads=2, ctx_size=200, parallel=2)
    with contextlib.closing(Engine.load(open_gguf(tiny_llama(tmp_path / "m.gguf")), options)) as engine:
        yield engine


def slow_down(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each batch take a while."""
    compute = engine.runner.evaluate_segments

    def slow(segments: Sequence[Segment], rows: NDArray[np.int32]) -> Logits:
        time.sleep(0.1)
        return compute(segments, rows)

    monkeypatch.setattr(engine.runner, "evaluate_segments", slow)


def run_steps(scheduled: ScheduledEngine, steps: int) -> list[int]:
    """Return the tokens of this many steps."""
    loop = GreedyLoop(scheduled)
    for _ in range(steps):
        scheduled.run_step(loop)
    scheduled.mark_idle()
    return loop.ids[: steps + 1]


@pytest.mark.parametrize("n_interrupts", [1, 3])
def test_sequence_is_usable_after_ctrl_c(n_interrupts: int, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache matches the tokens after any number of interrupts within a batch."""
    scheduled = ScheduledEngine(Scheduler(engine.runner))
    compute, batches = engine.runner.evaluate_segments, iter(range(1000))
    expected = run_steps(scheduled, 8)

    def interrupted(segments: Sequence[Segment], rows: NDArray[np.int32]) -> Logits:
        for _ in range(n_interrupts if next(batches) == 4 else 0):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.05)
        return compute(segments, rows)

    monkeypatch.setattr(engine.runner, "evaluate_segments", interrupted)
    loop = GreedyLoop(scheduled)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        try:
            for _ in range(20):
                scheduled.run_step(loop)
        finally:
            scheduled.mark_idle()
    assert scheduled.sequence.tokens == [*PROMPT, *loop.ids][: len(scheduled.sequence)]
    assert run_steps(scheduled, 8) == expected


@pytest.mark.parametrize("error", [ArithmeticError, SystemExit, KeyboardInterrupt])
def test_scheduler_thread_survives_errors(engine: Engine, error: type[BaseException]) -> None:
    scheduled = ScheduledEngine(Scheduler(engine.runner))
    expected = run_steps(scheduled, 5)

    def breaks(count: int) -> None:
        if count == 3:
            raise error

    loop = GreedyLoop(scheduled, breaks)
    with pytest.raises(error):  # noqa: PT012
        for _ in range(4):
            scheduled.run_step(loop)
    assert run_steps(scheduled, 5) == expected


def test_run_collected_by_the_scheduler_thread(engine: Engine) -> None:
    """Any thread may collect garbage; an unreferenced run then leaves its sequence."""
    scheduled = ScheduledEngine(Scheduler(engine.runner))
    expected = run_steps(scheduled, 5)
    loop = GreedyLoop(scheduled, lambda count: scheduled.mark_idle() if count == 3 else None)
    for _ in range(5):
        scheduled.run_step(loop)
    assert loop.ids[:6] == expected
    assert run_steps(scheduled, 5) == expected


def test_thread_start_failure_is_reported(engine: Engine) -> None:
    scheduled = ScheduledEngine(Scheduler(engine.runner))
    before = threading.stack_size(1 << 47)
    try:
        with pytest.raises(NotEnoughMemoryError):
            scheduled.evaluate(PROMPT)
    finally:
        threading.stack_size(before)
    assert len(run_steps(scheduled, 5)) == 6


def test_direct_use_of_the_engine_does_not_change_logits(engine: Engine) -> None:
    scheduler = Scheduler(engine.runner)
    pair = [ScheduledEngine(scheduler), ScheduledEngine(scheduler)]
    expected = run_steps(pair[0], 60)
    is_done = threading.Event()

    def compute_others() -> None:
        while not is_done.is_set():
            with engine.lock:
                engine.reset()
                engine.evaluate([7])

    actual: list[list[int]] = []
    other = threading.Thread(target=compute_others)
    threads = [threading.Thread(target=lambda each=scheduled: actual.append(run_steps(each, 60))) for scheduled in pair]
    for thread in (other, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    is_done.set()
    other.join()
    assert actual == [expected, expected]


def test_closing_during_a_step_raises(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled = ScheduledEngine(Scheduler(engine.runner))
    loop = GreedyLoop(scheduled)
    slow_down(engine, monkeypatch)
    threading.Timer(0.25, engine.close).start()
    with pytest.raises(LocalInferError, match="the model is closed"):  # noqa: PT012
        while True:
            scheduled.run_step(loop)
    scheduled.close()


def test_a_closed_model_frees_its_memory_at_once(tmp_path: Path) -> None:
    """The thread of the scheduler waits a second for further requests. Meanwhile another model needs the memory."""
    model = localinfer.load(tiny_llama(tmp_path / "m.gguf"), ctx_size=64, threads=1, parallel=2)
    model.concurrent(0).generate("Hello", n_predict=2)
    memory = weakref.ref(model.engine.graph.scratch)
    model.close()
    del model
    gc.collect()
    assert memory() is None


ENDS = """
    import os, sys, time
    import localinfer
    model = localinfer.load(sys.argv[1], ctx_size=200, parallel=2, threads=1)
    scheduled, compute = model.concurrent(0), model.engine.runner.evaluate_segments
    def slow(*given):
        time.sleep(0.2)
        return compute(*given)
    model.engine.runner.evaluate_segments = slow
    pieces = scheduled.stream([5, 6, 7], n_predict=50, ignore_eos=True)
    next(pieces), next(pieces)
"""
FORKS = """
    child = os.fork()
    if child:
        next(pieces)
        sys.exit(os.waitpid(child, 0)[1])
    for attempt in (lambda: next(pieces), lambda: model.logits([1, 2])):
        try:
            attempt()
        except localinfer.LocalInferError as error:
            assert "another process" in str(error)
        else:
            sys.exit(1)
"""


@pytest.mark.parametrize("more", ["", FORKS, "model.close()", "1 / 0"], ids=["as it is", "fork", "close", "error"])
def test_process_exits_during_a_step(more: str, tmp_path: Path) -> None:
    script = textwrap.dedent(ENDS) + textwrap.dedent(more)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tiny_llama(tmp_path / "m.gguf"))],
        timeout=60, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n") > 1) == ((1, True) if more == "1 / 0" else (0, False)), done.stderr
