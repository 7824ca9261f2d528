"""The interface of engines: an engine that evaluates by itself and a scheduled one give the same results."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models
from numpy.typing import NDArray
from tiny import tiny_llama

from localinfer.errors import ContextOverflowError, LocalInferError, UnsupportedError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime import snapshot
from localinfer.runtime.decode_loop import StepInput
from localinfer.runtime.engine import Engine
from localinfer.runtime.scheduling.scheduled_engine import ScheduledEngine
from localinfer.runtime.scheduling.scheduler import Scheduler
from localinfer.runtime.sequence_engine import SequenceEngine

N_CTX = 128
OPTIONS = Options(ctx_size=N_CTX, batch_size=32, threads=2, parallel=2)
IDS = np.random.default_rng(0).integers(0, 250, 100).tolist()
Logits = NDArray[np.float32]


def recurrent(path: Path) -> Path:
    """Write a model with recurrent states, which can only rewind to checkpoints."""
    return checkpoints.as_type(reference_models.checkpoint("mamba2", path.parent), path, "Q8_0")


@pytest.fixture(params=["direct", "scheduled"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def opened(path: Path, kind: str, options: Options = OPTIONS) -> Iterator[SequenceEngine]:
    with contextlib.closing(Engine.load(open_gguf(path), options)) as engine:
        yield ScheduledEngine(Scheduler(engine.runner)) if kind == "scheduled" else engine


@pytest.fixture
def engine(kind: str, tmp_path: Path) -> Iterator[SequenceEngine]:
    with opened(tiny_llama(tmp_path / "m.gguf"), kind) as running:
        yield running


@pytest.fixture
def expected(tmp_path: Path) -> Logits:
    """Return the logits after each token."""
    with opened(tiny_llama(tmp_path / "expected.gguf"), "direct") as running:
        return running.logits(IDS)


class Given:
    """A decode loop of given tokens."""

    def __init__(self, ids: list[int]) -> None:
        self.ids, self.rows = iter(ids), list[Logits]()

    def next_tokens(self) -> StepInput:
        return StepInput([next(self.ids)])

    def process_logits(self, logits: Logits) -> bool:
        self.rows.append(logits[0].copy())
        return False


def test_logits(engine: SequenceEngine, expected: Logits) -> None:
    reports: list[tuple[str, int, int]] = []
    row = engine.evaluate(IDS[:50], lambda *report: reports.append(report))
    np.testing.assert_array_equal(row, expected[49])
    assert (engine.n_past, reports[-1]) == (50, ("prefill", 50, 50))
    np.testing.assert_array_equal(engine.logits(IDS[50:60]), expected[50:60])
    rows = [each.copy() for each in engine.logits_in_batches(IDS[60:], skip=35)]
    np.testing.assert_array_equal(np.concatenate(rows), expected[95:])


def test_draft_tokens(engine: SequenceEngine, expected: Logits) -> None:
    engine.evaluate(IDS[:40])
    rows = engine.evaluate_draft([*IDS[40:44], 7, 8], skip=1)
    np.testing.assert_array_equal(rows[:3], expected[41:44])
    assert engine.rewind(44) == 44
    assert engine.compiled_graph.max_step_tokens == 32
    np.testing.assert_array_equal(engine.evaluate(IDS[44:50]), expected[49])


def test_decode_loop(engine: SequenceEngine, expected: Logits) -> None:
    engine.evaluate(IDS[:40])
    loop = Given(IDS[40:])
    for _ in range(5):
        engine.run_step(loop)
        engine.pause()
    np.testing.assert_array_equal(loop.rows, expected[40:45])


def test_cache(engine: SequenceEngine, expected: Logits) -> None:
    engine.evaluate(IDS[:40])
    engine.checkpoint()
    assert engine.reuse_prefix([*IDS[:30], 7], 100) == 30
    np.testing.assert_array_equal(engine.evaluate(IDS[30:50]), expected[49])
    engine.reset()
    assert (engine.n_past, engine.sequence.tokens) == (0, [])


def test_snapshot(engine: SequenceEngine, expected: Logits, tmp_path: Path) -> None:
    engine.evaluate(IDS[:40])
    snapshot.save(tmp_path / "snapshot", engine, OPTIONS)
    engine.reset()
    assert snapshot.load(tmp_path / "snapshot", engine, OPTIONS) == 40
    np.testing.assert_array_equal(engine.evaluate(IDS[40:50]), expected[49])


def test_errors(engine: SequenceEngine) -> None:
    for call in (engine.evaluate, engine.logits, engine.evaluate_draft, lambda ids: [*engine.logits_in_batches(ids)]):
        with pytest.raises(UsageError):
            call([-1])
        with pytest.raises(ContextOverflowError):
            call([5] * (N_CTX + 1))
    assert engine.n_past == 0


def test_closing(engine: SequenceEngine) -> None:
    engine.evaluate(IDS[:40])
    engine.runner.require_open()
    engine.close()
    if isinstance(engine, ScheduledEngine):
        assert engine.n_past == 0
        engine.runner.close()
    with pytest.raises(LocalInferError, match="is closed"):
        engine.evaluate([5])


def test_recurrent_states_rewind_to_a_checkpoint(kind: str, tmp_path: Path) -> None:
    with opened(recurrent(tmp_path / "m.gguf"), kind) as engine:
        engine.evaluate(IDS[:40], rewindable_suffix=8)
        expected = engine.evaluate(IDS[40:50]).copy()
        assert engine.rewind(45) == 32
        np.testing.assert_array_equal(engine.evaluate(IDS[32:50]), expected)


def test_encoders_have_no_logits(kind: str, tmp_path: Path) -> None:
    path = checkpoints.as_type(reference_models.checkpoint("bert", tmp_path), tmp_path / "m.gguf", "Q8_0")
    with opened(path, kind, Options(ctx_size=64, threads=1)) as engine:
        for call in (engine.evaluate, engine.evaluate_draft, engine.logits):
            with pytest.raises(UnsupportedError, match="is an encoder"):
                partial(call, [5, 6])()
