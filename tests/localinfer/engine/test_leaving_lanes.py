"""Who leaves lanes in the midst of something: by Ctrl-C, by the end of the process, by an error, or without a word."""

import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny import tiny_llama

from localinfer.engine.engine import Ask, Engine, Segment
from localinfer.engine.lanes import Lane, Lanes
from localinfer.errors import LocalInferError, NotEnoughMemory
from localinfer.files.gguf import open_gguf
from localinfer.options import Options

PROMPT = np.random.default_rng(0).integers(0, 250, 40).tolist()
Logits = NDArray[np.float32]


class Course:
    """The most probable token again and again; `then` is called with the number of those that there are."""

    def __init__(self, lane: Lane, then: Callable[[int], object] = lambda _: None) -> None:
        lane.recall(PROMPT, len(PROMPT) - 1)
        self.ids, self.then = [int(lane.evaluate(PROMPT[len(lane.sequence) :]).argmax())], then

    def ask(self) -> Ask:
        return Ask(self.ids[-1:])

    def take(self, logits: Logits) -> bool:
        self.ids.append(int(logits[0].argmax()))
        self.then(len(self.ids))
        return True


@pytest.fixture(name="engine")
def opened(tmp_path: Path) -> Iterator[Engine]:
    options = Options(threads=2, ctx_size=200, parallel=2)
    with contextlib.closing(Engine(open_gguf(tiny_llama(tmp_path / "m.gguf")), options)) as engine:
        yield engine


def slowed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch takes a while."""
    compute = engine.compute

    def slow(segments: Sequence[Segment], rows: NDArray[np.int32]) -> Logits:
        time.sleep(0.1)
        return compute(segments, rows)

    monkeypatch.setattr(engine, "compute", slow)


def followed(lane: Lane, steps: int) -> list[int]:
    """The tokens of so many steps."""
    course = Course(lane)
    for _ in range(steps):
        lane.follow(course)
    lane.rest()
    return course.ids[: steps + 1]


@pytest.mark.parametrize("presses", [1, 3])
def test_ctrl_c_leaves_a_lane_that_goes_on(presses: int, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it comes while a batch is computed, what is remembered fits the tokens."""
    lane, compute, batches = Lanes(engine).lane(), engine.compute, iter(range(1000))
    expected = followed(lane, 8)

    def interrupted(segments: Sequence[Segment], rows: NDArray[np.int32]) -> Logits:
        for _ in range(presses if next(batches) == 4 else 0):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.05)
        return compute(segments, rows)

    monkeypatch.setattr(engine, "compute", interrupted)
    course = Course(lane)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        try:
            for _ in range(20):
                lane.follow(course)
        finally:
            lane.rest()
    assert lane.sequence.tokens == [*PROMPT, *course.ids][: len(lane.sequence)]
    assert followed(lane, 8) == expected


@pytest.mark.parametrize("error", [ArithmeticError, SystemExit, KeyboardInterrupt])
def test_the_thread_that_computes_outlives_every_error(engine: Engine, error: type[BaseException]) -> None:
    lane = Lanes(engine).lane()
    expected = followed(lane, 5)

    def breaks(count: int) -> None:
        if count == 3:
            raise error

    course = Course(lane, breaks)
    with pytest.raises(error):  # noqa: PT012
        for _ in range(4):
            lane.follow(course)
    assert followed(lane, 5) == expected


def test_a_run_that_the_computing_thread_collects_does_not_stop_it(engine: Engine) -> None:
    """Garbage is collected in whichever thread, and a run that nobody holds any more leaves its lane then."""
    lane = Lanes(engine).lane()
    expected = followed(lane, 5)
    course = Course(lane, lambda count: lane.rest() if count == 3 else None)
    for _ in range(5):
        lane.follow(course)
    assert course.ids[:6] == expected
    assert followed(lane, 5) == expected


def test_no_room_for_the_thread_is_said(engine: Engine) -> None:
    lane = Lanes(engine).lane()
    before = threading.stack_size(1 << 47)
    try:
        with pytest.raises(NotEnoughMemory):
            lane.evaluate(PROMPT)
    finally:
        threading.stack_size(before)
    assert len(followed(lane, 5)) == 6


def test_who_computes_beside_lanes_does_not_change_their_logits(engine: Engine) -> None:
    lanes = Lanes(engine)
    pair = [lanes.lane(), lanes.lane()]
    expected = followed(pair[0], 60)
    is_over = threading.Event()

    def compute_others() -> None:
        while not is_over.is_set():
            with engine.lock:
                engine.reset()
                engine.evaluate([7])

    found: list[list[int]] = []
    other = threading.Thread(target=compute_others)
    threads = [threading.Thread(target=lambda each=lane: found.append(followed(each, 60))) for lane in pair]
    for thread in (other, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    is_over.set()
    other.join()
    assert found == [expected, expected]


def test_what_is_closed_says_so_to_who_is_in_the_midst_of_a_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Lanes(engine).lane()
    course = Course(lane)
    slowed(engine, monkeypatch)
    threading.Timer(0.25, engine.close).start()
    with pytest.raises(LocalInferError, match="the model is closed"):  # noqa: PT012
        while True:
            lane.follow(course)
    lane.close()


ENDS = """
    import os, sys, time
    import localinfer
    model = localinfer.load(sys.argv[1], ctx_size=200, parallel=2, threads=1)
    lane, compute = model.beside(0), model.engine.compute
    def slow(*given):
        time.sleep(0.2)
        return compute(*given)
    model.engine.compute = slow
    pieces = lane.generate([5, 6, 7], n_predict=50, ignore_eos=True)
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
def test_the_process_ends_while_a_step_is_computed(more: str, tmp_path: Path) -> None:
    script = textwrap.dedent(ENDS) + textwrap.dedent(more)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tiny_llama(tmp_path / "m.gguf"))],
        timeout=60, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n") > 1) == ((1, True) if more == "1 / 0" else (0, False)), done.stderr
