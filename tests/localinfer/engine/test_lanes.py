"""Many sequences at a time: each computes the bits that it computes alone, and none is in the way of another."""

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
import proofs
import pytest
from numpy.typing import NDArray
from served import until
from tiny import tiny_gemma3, tiny_llama

from localinfer.engine.engine import Ask, Engine, Segment
from localinfer.engine.lanes import Lane, Lanes
from localinfer.errors import ContextOverflow
from localinfer.files.gguf import open_gguf
from localinfer.options import Options
from localinfer.plan.memory.pages import NoRoom, Pages

Logits = NDArray[np.float32]
RANDOM = np.random.default_rng(0)
COMMON = RANDOM.integers(0, 250, 90).tolist()
LENGTHS = [150, 5, 97, 64, 1, 129]
PROMPTS = [[*COMMON[: n // 2], *RANDOM.integers(0, 250, n - n // 2).tolist()] for n in LENGTHS]


def proof(name: str, path: Path, type: str) -> Path:
    """A checkpoint that has more than tiny models have."""
    return checkpoints.as_type(proofs.checkpoint(name, path.parent), path, type)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "f16": (tiny_llama, {}),
    "quantized": (tiny_llama, {"cache_type_k": "q8_0", "cache_type_v": "q4_0", "type": "Q4_K"}),
    "sliding": (tiny_gemma3, {"batch_size": 32}),
    "ring": (tiny_llama, {"ctx_policy": "ring", "ctx_size": 64, "batch_size": 32}),
    "convolutions": (partial(proof, "lfm2"), {}),
    "delta": (partial(proof, "qwen35"), {}),
    "add": (partial(proof, "mamba2"), {}),
    "scan": (partial(proof, "mamba"), {}),
    "wkv": (partial(proof, "rwkv7"), {}),
    "shared keys": (partial(proof, "gemma4"), {"batch_size": 32}),
}
SEQUENCES = len(PROMPTS)


@pytest.fixture(params=CASES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    tiny, given = CASES[request.param]
    options = {"threads": 2, "ctx_size": 200, "parallel": SEQUENCES} | given
    path = tiny(tmp_path / "m.gguf", type=options.pop("type", "Q8_0"))
    with contextlib.closing(Engine(open_gguf(path), Options(**options))) as running:
        yield running


def alone(engine: Engine, tokens: Sequence[int], answers: int) -> list[Logits]:
    """The logits after a prompt, and after each of some tokens of an answer."""
    engine.reset()
    found = [engine.evaluate(tokens).copy()]
    for _ in range(answers):
        found.append(engine.evaluate([int(found[-1].argmax())]).copy())
    engine.reset()
    return found


def test_segments_of_a_batch_compute_what_they_compute_alone(engine: Engine) -> None:
    """Prompts in pieces beside single tokens of others, until all are read."""
    expected = [alone(engine, prompt, 0)[0] for prompt in PROMPTS]
    sequences = [engine.begin() for _ in PROMPTS]
    while left := [(s, p) for s, p in zip(sequences, PROMPTS, strict=True) if len(s) < len(p)]:
        sizes = [1 + (5 * number + 3 * len(s)) % (engine.plan.batch // SEQUENCES) for number, (s, _) in enumerate(left)]
        segments = [
            Segment(s, np.array(p[len(s) : len(s) + n], np.int32)) for (s, p), n in zip(left, sizes, strict=True)
        ]
        ends = np.cumsum([len(each.ids) for each in segments])
        logits = engine.compute(segments, (ends - 1).astype(np.int32)).copy()
        for (s, p), row in zip(left, logits, strict=True):
            if len(s) == len(p):
                np.testing.assert_array_equal(row, expected[sequences.index(s)])


def test_lanes_answer_together_what_they_answer_alone(engine: Engine) -> None:
    expected = [alone(engine, prompt, 20) for prompt in PROMPTS]
    lanes = Lanes(engine)

    def answer(lane: Lane, prompt: list[int], expected: list[Logits]) -> None:
        for _ in range(2):  # the second time much is remembered
            lane.recall(prompt, len(prompt) - 1)
            logits = lane.evaluate(prompt[len(lane.sequence) :])
            for wanted in expected[1:]:
                logits = lane.evaluate([int(logits.argmax())])
                np.testing.assert_array_equal(logits, wanted)
            lane.rest()

    with ThreadPoolExecutor(SEQUENCES) as threads:
        list(threads.map(answer, [lanes.lane() for _ in PROMPTS], PROMPTS, expected))


class Greedy:
    """A course that takes the most probable token again and again, so often; it may break down at one of them."""

    def __init__(self, first: int, steps: int, breaks_at: int = -1) -> None:
        self.ids, self.steps, self.breaks_at = [first], steps, breaks_at

    def ask(self) -> Ask:
        return Ask(self.ids[-1:])

    def take(self, logits: Logits) -> bool:
        if len(self.ids) == self.breaks_at:
            raise ArithmeticError("broken")
        self.ids.append(int(logits[0].argmax()))
        return len(self.ids) <= self.steps


def begun(lane: Lane, prompt: Sequence[int]) -> int:
    """The first token of an answer."""
    lane.recall(prompt, len(prompt) - 1)
    return int(lane.evaluate(prompt[len(lane.sequence) :]).argmax())


def test_courses_go_where_they_go_alone(engine: Engine) -> None:
    """Those that are followed to their end, those that somebody leaves, and beside one that breaks down."""
    expected = [[int(row.argmax()) for row in alone(engine, prompt, 20)] for prompt in PROMPTS]
    lanes = Lanes(engine)

    def answer(number: int, lane: Lane) -> None:
        prompt, steps = PROMPTS[number], 20 - 3 * number
        for breaks_at in (-1, number - 1, -1):
            course = Greedy(begun(lane, prompt), 20, breaks_at)
            with contextlib.suppress(ArithmeticError):
                for _ in range(steps):
                    lane.follow(course)
            if breaks_at > 0:
                assert len(course.ids) == breaks_at
            lane.rest()
            taken = len(course.ids) if breaks_at > 0 else steps
            assert course.ids == expected[number][: len(course.ids)]
            assert lane.sequence.tokens == [*prompt, *course.ids[:taken]]

    with ThreadPoolExecutor(SEQUENCES) as threads:
        list(threads.map(answer, range(SEQUENCES), [lanes.lane() for _ in PROMPTS]))


def test_a_step_is_begun_before_it_is_asked_for(tmp_path: Path) -> None:
    """One, and not two; then it is for the lane to ask."""
    with contextlib.closing(Engine(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(parallel=2))) as engine:
        lane = Lanes(engine).lane()
        course = Greedy(begun(lane, COMMON), 9)
        for step in range(1, 4):
            lane.follow(course)
            assert until(lambda taken=step + 2: len(course.ids) == taken, 5)
            time.sleep(0.02)
            assert len(course.ids) == step + 2


def test_of_many_lanes_each_is_some_steps_behind_at_most(tmp_path: Path) -> None:
    """However slow its thread is; and what was begun for who leaves is forgotten."""
    count, steps, behind = 8, 25, 3
    options = Options(threads=2, ctx_size=200, parallel=count)
    with contextlib.closing(Engine(open_gguf(tiny_llama(tmp_path / "m.gguf")), options)) as engine:
        prompts = [COMMON[: 9 + 5 * number] for number in range(count)]
        expected = [[int(row.argmax()) for row in alone(engine, prompt, steps + behind)] for prompt in prompts]
        lanes = Lanes(engine)

        def answer(number: int, lane: Lane) -> int:
            course, most = Greedy(begun(lane, prompts[number]), 99), 0
            for step in range(1, steps):
                lane.follow(course)
                time.sleep(0.001 * number)
                most = max(most, len(course.ids) - 1 - step)
            lane.rest()
            assert course.ids == expected[number][: len(course.ids)]
            assert lane.sequence.tokens == [*prompts[number], *course.ids[: steps - 1]]
            return most

        with ThreadPoolExecutor(count) as threads:
            assert max(threads.map(answer, range(count), [lanes.lane() for _ in prompts])) <= behind


def test_the_thread_that_computes_ends_when_there_is_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localinfer.engine.lanes.IDLE", 0.05)
    with contextlib.closing(Engine(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(parallel=2))) as engine:
        expected, lane = alone(engine, COMMON, 0)[0], Lanes(engine).lane()
        for _ in range(2):
            np.testing.assert_array_equal(lane.evaluate(COMMON), expected)
            lane.reset()
            assert until(lambda: not any(each.name == "localinfer-lanes" for each in threading.enumerate()), 5)


def test_a_prefix_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nobody has read it before all ask for it."""
    path = tiny_llama(tmp_path / "m.gguf")
    prompts = [[*COMMON, number, 7, 9] for number in range(6)]
    with contextlib.closing(Engine(open_gguf(path), Options(threads=2, ctx_size=200, parallel=6))) as engine:
        expected = [alone(engine, prompt, 0)[0] for prompt in prompts]
        lanes, computed, compute = Lanes(engine), [], engine.compute

        def counted(segments: Sequence[Segment], rows: NDArray[np.int32]) -> Logits:
            computed.append(sum(len(each.ids) for each in segments))
            return compute(segments, rows)

        monkeypatch.setattr(engine, "compute", counted)

        def read(lane: Lane, prompt: list[int]) -> Logits:
            with lane.lock:
                lane.recall(prompt, len(prompt) - 1)
                time.sleep(0.02)  # there are things to do before it asks
                return lane.evaluate(prompt[len(lane.sequence) :])

        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(read, [lanes.lane() for _ in prompts], prompts))
        np.testing.assert_array_equal(found, expected)
        assert sum(computed) == len(COMMON) + 6 * 3


def test_who_recalls_and_does_not_ask_is_not_waited_for_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localinfer.engine.lanes.PROMISE", 0.05)
    path = tiny_llama(tmp_path / "m.gguf")
    with contextlib.closing(Engine(open_gguf(path), Options(threads=2, ctx_size=200, parallel=2))) as engine:
        expected = alone(engine, COMMON, 0)[0]
        lanes = Lanes(engine)
        silent, other = lanes.lane(), lanes.lane()
        silent.recall(COMMON, len(COMMON) - 1)
        other.recall(COMMON, len(COMMON) - 1)
        np.testing.assert_array_equal(other.evaluate(COMMON), expected)


def test_a_fork_goes_its_own_way(engine: Engine) -> None:
    """Both write behind what they share, and go back into it."""
    first, second, third = COMMON, [*COMMON[:70], *PROMPTS[2][50:]], [*COMMON[:33], 1, 2]
    expected = [alone(engine, tokens, 5) for tokens in (first, second, third)]
    one = engine.begin()
    feed(engine, one, first)
    two, three = one.fork(), one.fork()
    for fork, n in ((two, 70), (three, 33)):
        fork.rewind(n)
    for wanted, sequence, tokens in zip(expected, (one, two, three), (first, second, third), strict=True):
        rows = feed(engine, sequence, tokens[len(sequence) :]) if len(sequence) < len(tokens) else wanted[0]
        np.testing.assert_array_equal(rows, wanted[0])
    for before, after in zip(range(5), range(1, 6), strict=True):
        for wanted, sequence in zip(expected, (one, two, three), strict=True):
            np.testing.assert_array_equal(feed(engine, sequence, [int(wanted[before].argmax())]), wanted[after])
    for sequence in (one, two, three):
        sequence.reset()
    recorder = engine.program.recorder
    assert all(each.pages.free == len(each.pages) for each in (*recorder.attention.rings.values(), recorder.state))


def feed(engine: Engine, sequence: Any, tokens: Sequence[int]) -> Logits:
    for first in range(0, len(tokens), engine.plan.batch):
        part = np.array(tokens[first : first + engine.plan.batch], np.int32)
        logits = engine.compute([Segment(sequence, part)], np.array([len(part) - 1], np.int32))
    return logits[0].copy()


def test_pages_are_counted() -> None:
    pages = Pages(2)
    assert (pages.take(), pages.take(), pages.free) == (0, 1, 0)
    with pytest.raises(NoRoom):
        pages.take()
    pages.share(1)
    pages.give_back(1)
    assert (pages.is_shared(1), pages.free) == (False, 0)
    pages.give_back(1)
    pages.give_back(0)
    assert pages.take() == 0


def test_who_is_alone_needs_no_other_thread(tmp_path: Path) -> None:
    """Until somebody comes, and again when they have left."""
    with (
        contextlib.closing(Engine(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(parallel=2))) as engine,
        ThreadPoolExecutor(1, "own") as own,
        ThreadPoolExecutor(1, "other") as others,
    ):
        expected = [[int(row.argmax()) for row in alone(engine, prompt, 60)] for prompt in (COMMON, COMMON[:7])]
        lanes = Lanes(engine)
        one, other = lanes.lane(), lanes.lane()
        course, company = Greedy(begun(one, COMMON), 99), Greedy(begun(other, COMMON[:7]), 99)
        other.rest()
        threads = set[str]()
        engine.program.meanwhile([1], lambda: threads.add(threading.current_thread().name))

        def follow(steps: int) -> set[str]:
            threads.clear()
            own.submit(lambda: [one.follow(course) for _ in range(steps)]).result()
            return set(threads)

        assert follow(5) == {"own_0"}
        coming = others.submit(lambda: [other.follow(company) for _ in range(30)])
        assert "localinfer-lanes" in follow(20)
        coming.result()
        other.rest()
        follow(3)  # some of these may have been begun in company
        assert follow(3) == {"own_0"}
        assert course.ids == expected[0][: len(course.ids)]
        assert company.ids == expected[1][: len(company.ids)]


@pytest.mark.parametrize("place", ["ask", "take"])
@pytest.mark.parametrize("error", [ArithmeticError, SystemExit])
def test_who_fails_alone_is_in_nobodys_way(tmp_path: Path, place: str, error: type[BaseException]) -> None:
    with (
        contextlib.closing(Engine(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(parallel=2))) as engine,
        ThreadPoolExecutor(1) as own,
    ):
        expected = [int(row.argmax()) for row in alone(engine, COMMON, 3)]
        lane = Lanes(engine).lane()

        def fail(*_: object) -> None:
            raise error

        broken = Greedy(begun(lane, COMMON), 99)
        setattr(broken, place, fail)
        with pytest.raises(error):
            own.submit(lane.follow, broken).result()
        course = Greedy(begun(lane, COMMON), 99)
        for _ in range(3):
            own.submit(lane.follow, course).result()
        assert course.ids == expected


def test_who_leaves_a_lane_waits_for_what_its_thread_computes_alone(tmp_path: Path) -> None:
    with (
        contextlib.closing(Engine(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(parallel=2))) as engine,
        ThreadPoolExecutor(1) as own,
    ):
        lane = Lanes(engine).lane()
        course = Greedy(begun(lane, COMMON), 99)
        is_there, goes_on, take = threading.Event(), threading.Event(), course.take

        def slow(logits: Logits) -> bool:
            is_there.set()
            goes_on.wait(5)
            return take(logits)

        course.take = slow  # type: ignore[method-assign]
        step = own.submit(lane.follow, course)
        is_there.wait(5)
        leaving = ThreadPoolExecutor(1).submit(lane.close)
        time.sleep(0.05)
        assert not leaving.done()
        goes_on.set()
        step.result()
        leaving.result()
        assert not lane.sequence.tokens


def test_who_has_no_room_left_is_in_nobodys_way(tmp_path: Path) -> None:
    """Two that go on together, one of them to the end of the context and beyond."""
    options = Options(parallel=2, ctx_size=128)
    with contextlib.closing(Engine(open_gguf(tiny_llama(tmp_path / "m.gguf")), options)) as engine:
        prompts = [COMMON[:64], COMMON[:7]]
        expected = [[int(row.argmax()) for row in alone(engine, prompt, 64)] for prompt in prompts]
        lanes = Lanes(engine)
        running = [lanes.lane() for _ in prompts]
        courses = [Greedy(begun(lane, prompt), 99) for lane, prompt in zip(running, prompts, strict=True)]

        def follow(lane: Lane, course: Greedy) -> type[BaseException] | None:
            try:
                for _ in range(70):
                    lane.follow(course)
            except ContextOverflow as error:
                return type(error)
            finally:
                lane.rest()
            return None

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(follow, running, courses)) == [ContextOverflow, None]
        assert courses[0].ids == expected[0]
        assert courses[1].ids[:65] == expected[1]
