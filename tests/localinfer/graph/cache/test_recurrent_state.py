"""Recurrent states rewind to checkpoints only, and the logits after rewinding are the same bits as without it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models
from fuzz.mutable_gguf import MutableGGUF

from localinfer.gguf.reader import open_gguf
from localinfer.graph.cache.recurrent_state import MAX_CHECKPOINTS, MAX_DRAFT_STATES
from localinfer.options import Options
from localinfer.runtime.batch import Segment
from localinfer.runtime.engine import Engine
from localinfer.runtime.thread_pool import OnOp

IDS = reference_models.expected("lfm2").ids


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    return checkpoints.as_type(reference_models.checkpoint("lfm2", folder), folder / "lfm2.gguf", "Q8_0")


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    with contextlib.closing(Engine.load(open_gguf(path), Options(ctx_size=128, threads=2))) as running:
        yield running


def test_rewind_to_checkpoints_only(engine: Engine) -> None:
    whole = engine.logits(IDS)
    engine.reset()
    engine.evaluate(IDS[:40], rewindable_suffix=8)
    engine.evaluate(IDS[40:50])
    engine.checkpoint()
    engine.evaluate(IDS[50:80])
    assert engine.rewind(80) == 80
    assert engine.rewind(79) == 50
    np.testing.assert_array_equal(engine.logits(IDS[50:]), whole[50:])
    assert engine.rewind(49) == 32
    np.testing.assert_array_equal(engine.logits(IDS[32:]), whole[32:])
    assert engine.rewind(31) == engine.n_past == 0
    np.testing.assert_array_equal(engine.logits(IDS), whole)


def test_the_oldest_checkpoints_are_dropped(engine: Engine) -> None:
    for first in range(0, 10 * (MAX_CHECKPOINTS + 2), 10):
        engine.evaluate(IDS[first : first + 10])
        engine.checkpoint()
        engine.checkpoint()  # a second checkpoint at the same position takes no slot
    assert engine.rewind(35) == 30
    assert engine.rewind(29) == 0


def test_rejected_draft_tokens_are_rewound(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept all, some or no draft tokens, repeatedly, with memory for a state per draft token, for a few states, and
    for one."""
    whole = engine.logits(IDS)
    pool = engine.compiled_graph.model_graph.states
    assert pool.n_draft_states == MAX_DRAFT_STATES
    for n_states in (MAX_DRAFT_STATES, 3, 1):
        monkeypatch.setattr(pool, "n_draft_states", n_states)
        engine.reset()
        engine.evaluate(IDS[:30], rewindable_suffix=8)
        free, n_accepted = pool.pages.n_free, 0
        while (at := engine.n_past) < 70:
            confirmed, draft = IDS[at : at + 1 + n_accepted], IDS[at + 1 + n_accepted : at + 13]
            n_accepted = n_accepted * 5 % 7 + 1  # the number of accepted draft tokens
            wrong = [id ^ 1 for id in draft[n_accepted:]]
            rows = engine.evaluate_draft([*confirmed, *draft[:n_accepted], *wrong], skip=len(confirmed) - 1)
            end = at + len(confirmed) + n_accepted
            np.testing.assert_array_equal(rows[: 1 + n_accepted], whole[at + len(confirmed) - 1 : end])
            length = engine.rewind(end)
            assert length == end if n_states == MAX_DRAFT_STATES else at + len(confirmed) <= length <= end
            n_accepted = end - length
            assert pool.pages.n_free == free
        assert engine.rewind(29) == 22


def test_draft_tokens_do_not_affect_other_sequences(path: Path) -> None:
    with contextlib.closing(Engine.load(open_gguf(path), Options(ctx_size=128, parallel=2, threads=1))) as engine:
        whole = engine.logits(IDS)
        engine.reset()
        engine.evaluate(IDS[:30])
        engine.evaluate_draft([*IDS[30:35], 3, 3])
        other = engine.sequence.fork()
        assert engine.rewind(35) == 35
        assert other.rewind(33) == 33
        np.testing.assert_array_equal(engine.logits(IDS[35:]), whole[35:])
        segment = Segment(other, np.array(IDS[33:34], np.int32))
        [row] = engine.runner.evaluate_segments([segment], np.array([0], np.int32))
        np.testing.assert_array_equal(row, whole[33])


def test_checkpoints_survive_an_interrupted_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine.logits(IDS)
    engine.reset()
    engine.evaluate(IDS[:40], rewindable_suffix=8)
    run = engine.compiled_graph.run

    def interrupted(first: int, end: int, tokens: int, watch: OnOp | None) -> None:
        run(first, (first + end) // 2, tokens, watch)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.compiled_graph, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.evaluate(IDS[40:60])
    monkeypatch.undo()
    assert engine.n_past == 32
    np.testing.assert_array_equal(engine.logits(IDS[32:]), whole[32:])


def test_state_is_saved_and_restored(engine: Engine) -> None:
    whole = engine.logits(IDS)
    engine.reset()
    engine.evaluate(IDS[:40])
    saved = engine.sequence.save()
    engine.evaluate(IDS[40:60])
    engine.sequence.load(IDS[:40], saved)
    np.testing.assert_array_equal(engine.logits(IDS[40:]), whole[40:])
    with pytest.raises(ValueError, match="30 tokens"):
        engine.sequence.load(IDS[:30], saved)


def test_graph_size_includes_states(engine: Engine) -> None:
    """Three layers with two tokens' 96 values each, and all slots."""
    state = engine.compiled_graph.model_graph.states
    assert state.nbytes == (1 + MAX_CHECKPOINTS + MAX_DRAFT_STATES) * 3 * 4 * 2 * 96
    rings = engine.compiled_graph.model_graph.attention.rings.values()
    assert engine.compiled_graph.model_graph.cache_bytes == state.nbytes + sum(ring.nbytes for ring in rings)


def with_one_tap(path: Path, out: Path, *, width: int) -> Path:
    """Write the model with convolutions over one token: of width 1, or of more with zeros before the last weight."""
    gguf = MutableGGUF.read(path)
    [key] = [each for each in gguf.keys if each.name == b"lfm2.shortconv.l_cache"]
    key.value = width.to_bytes(4, "little")
    for tensor in gguf.tensors:
        if tensor.name.endswith(b"shortconv.conv.weight"):
            last = np.frombuffer(tensor.data, np.float32).reshape(-1, tensor.dims[0])[:, -1:]
            taps = np.pad(last, ((0, 0), (width - 1, 0)))
            tensor.dims, tensor.data = (width, len(taps)), taps.tobytes()
    out.write_bytes(gguf.to_bytes())
    return out


def test_convolution_over_one_token_has_no_state(path: Path, tmp_path: Path) -> None:
    logits = []
    for width in (1, 3):
        f = open_gguf(with_one_tap(path, tmp_path / f"{width}.gguf", width=width))
        with contextlib.closing(Engine.load(f, Options(ctx_size=128, threads=2))) as engine:
            logits.append(engine.logits(IDS))
            engine.rewind(0)
            engine.evaluate(IDS[:40], rewindable_suffix=8)
            assert engine.rewind(35) == 32
            np.testing.assert_array_equal(engine.logits(IDS[32:]), logits[-1][32:])
    np.testing.assert_array_equal(*logits)
