"""States go back to where they were kept, and nowhere else: logits behind that are the same bits as in one go."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import checkpoints
import numpy as np
import proofs
import pytest

from localinfer.engine.engine import Engine
from localinfer.engine.team import Watch
from localinfer.files.gguf import open_gguf
from localinfer.options import Options
from localinfer.plan.state import COPIES

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
    assert state.nbytes == (1 + COPIES) * 3 * 4 * 2 * 96
    rings = engine.program.recorder.attention.rings.values()
    assert engine.kv_bytes == state.nbytes + sum(ring.nbytes for ring in rings)
