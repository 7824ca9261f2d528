"""States go back to where they were kept, and nowhere else: logits behind that are the same bits as in one go."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import checkpoints
import numpy as np
import proofs
import pytest

from localinfer.engine.engine import Engine, Segment
from localinfer.engine.team import Watch
from localinfer.files.gguf import open_gguf
from localinfer.options import Options
from localinfer.plan.memory.state import COPIES, GUESSES

IDS = proofs.expected("lfm2").ids


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    return checkpoints.as_type(proofs.checkpoint("lfm2", folder), folder / "lfm2.gguf", "Q8_0")


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    with contextlib.closing(Engine(open_gguf(path), Options(ctx_size=128, threads=2))) as running:
        yield running


def test_only_what_was_kept_can_be_returned_to(engine: Engine) -> None:
    whole = engine.logits(IDS)
    engine.reset()
    engine.evaluate(IDS[:40], keep=8)
    engine.evaluate(IDS[40:50])
    engine.keep()
    engine.evaluate(IDS[50:80])
    assert engine.rewind(80) == 80
    assert engine.rewind(79) == 50
    np.testing.assert_array_equal(engine.logits(IDS[50:]), whole[50:])
    assert engine.rewind(49) == 32
    np.testing.assert_array_equal(engine.logits(IDS[32:]), whole[32:])
    assert engine.rewind(31) == engine.n_past == 0
    np.testing.assert_array_equal(engine.logits(IDS), whole)


def test_the_oldest_copies_go(engine: Engine) -> None:
    for first in range(0, 10 * (COPIES + 2), 10):
        engine.evaluate(IDS[first : first + 10])
        engine.keep()
        engine.keep()  # the same again takes no room
    assert engine.rewind(35) == 30
    assert engine.rewind(29) == 0


def test_guesses_are_taken_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """All, some or none of them, again and again: with room for a state behind each, for a few states, and for one."""
    whole = engine.logits(IDS)
    slots = engine.program.recorder.state
    assert slots.guesses == GUESSES
    for room in (GUESSES, 3, 1):
        monkeypatch.setattr(slots, "guesses", room)
        engine.reset()
        engine.evaluate(IDS[:30], keep=8)
        free, right = slots.pages.free, 0
        while (at := engine.n_past) < 70:
            sure, guesses = IDS[at : at + 1 + right], IDS[at + 1 + right : at + 13]
            right = right * 5 % 7 + 1  # so many come true
            wrong = [id ^ 1 for id in guesses[right:]]
            rows = engine.evaluate_guesses([*sure, *guesses[:right], *wrong], skip=len(sure) - 1)
            end = at + len(sure) + right
            np.testing.assert_array_equal(rows[: 1 + right], whole[at + len(sure) - 1 : end])
            kept = engine.rewind(end)
            assert kept == end if room == GUESSES else at + len(sure) <= kept <= end
            right = end - kept
            assert slots.pages.free == free
        assert engine.rewind(29) == 22


def test_sequences_that_guess_do_not_change_each_other(path: Path) -> None:
    with contextlib.closing(Engine(open_gguf(path), Options(ctx_size=128, parallel=2, threads=1))) as engine:
        whole = engine.logits(IDS)
        engine.reset()
        engine.evaluate(IDS[:30])
        engine.evaluate_guesses([*IDS[30:35], 3, 3])
        other = engine.sequence.fork()
        assert engine.rewind(35) == 35
        assert other.rewind(33) == 33
        np.testing.assert_array_equal(engine.logits(IDS[35:]), whole[35:])
        [row] = engine.compute([Segment(other, np.array(IDS[33:34], np.int32))], np.array([0], np.int32))
        np.testing.assert_array_equal(row, whole[33])


def test_a_run_that_is_interrupted_leaves_what_was_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine.logits(IDS)
    engine.reset()
    engine.evaluate(IDS[:40], keep=8)
    run = engine.program.run

    def interrupted(first: int, end: int, tokens: int, watch: Watch | None) -> None:
        run(first, (first + end) // 2, tokens, watch)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.program, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.evaluate(IDS[40:60])
    monkeypatch.undo()
    assert engine.n_past == 32
    np.testing.assert_array_equal(engine.logits(IDS[32:]), whole[32:])


def test_it_is_saved_and_loaded(engine: Engine) -> None:
    whole = engine.logits(IDS)
    engine.reset()
    engine.evaluate(IDS[:40])
    saved = engine.sequence.save()
    engine.evaluate(IDS[40:60])
    engine.sequence.load(IDS[:40], saved)
    np.testing.assert_array_equal(engine.logits(IDS[40:]), whole[40:])
    with pytest.raises(ValueError, match="30 tokens"):
        engine.sequence.load(IDS[:30], saved)


def test_its_memory_is_in_the_plan(engine: Engine) -> None:
    """Three layers, of two tokens' 96 numbers, with all copies."""
    state = engine.program.recorder.state
    assert state.nbytes == (1 + COPIES + GUESSES) * 3 * 4 * 2 * 96
    rings = engine.program.recorder.attention.rings.values()
    assert engine.kv_bytes == state.nbytes + sum(ring.nbytes for ring in rings)
