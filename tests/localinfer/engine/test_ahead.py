"""A head that looks further ahead expects what the oracle does, however it came to know the text."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import heads
import naive
import numpy as np
import proofs
import pytest
from guessing import looks_are_apart

from localinfer.engine.engine import Engine, Look, Segment
from localinfer.engine.lanes import Lanes
from localinfer.errors import NotEnoughMemory
from localinfer.files.gguf import open_gguf
from localinfer.options import Options

EXACT = Options(ctx_size=128, threads=1, parallel=2, precision="high", cache_type_k="f32", cache_type_v="f32")
AT = (1, 7, 30, 31, 90)  # tokens that are computed, before the one that is looked behind


@contextlib.contextmanager
def opened(path: Path, **options: str) -> Iterator[Engine]:
    with contextlib.closing(Engine(open_gguf(path), replace(EXACT, **options))) as engine:
        yield engine


@pytest.mark.parametrize(("name", "own"), [*((name, False) for name in heads.NAMES), ("glm4moe", True)])
def test_it_expects_what_the_oracle_expects(name: str, own: bool, tmp_path: Path) -> None:
    path, ids = heads.with_head(name, tmp_path, "F32", own=own), proofs.expected(name).ids
    model = naive.Model(open_gguf(path))
    model.ctx_size = EXACT.ctx_size
    expected = naive.further(model, ids)
    with opened(path) as engine:
        for end in AT:  # behind tokens that came in one batch, and in several
            engine.evaluate(ids[engine.n_past : end])
            logits, _ = engine.evaluate_further(ids[end], end)
            np.testing.assert_allclose(logits, expected[end], rtol=0, atol=1e-3)
            assert engine.n_past == end


def test_it_goes_on_behind_its_own_guesses(tmp_path: Path) -> None:
    """By what it makes of these: the same as if that was what they became, and nothing that stays."""
    path, ids = heads.with_head("glm4moe", tmp_path, "F32"), proofs.expected("glm4moe").ids
    with opened(path) as engine:
        whole = engine.logits(ids)
        engine.reset()
        engine.evaluate(ids[:40])
        _, state = engine.evaluate_further(ids[40], 40)
        first, _ = engine.evaluate_further(ids[41], 41, state)
        again, _ = engine.evaluate_further(ids[41], 41, state)
        first = first.copy()
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(engine.logits(ids[40:]), whole[40:])


def test_logits_are_those_without_it(tmp_path: Path) -> None:
    path, ids = heads.with_head("qwen35", tmp_path, "Q8_0"), proofs.expected("qwen35").ids
    with opened(path) as engine, opened(path, spec_type="none") as plain:
        assert engine.looks_further
        assert not plain.looks_further
        np.testing.assert_array_equal(engine.logits(ids), plain.logits(ids))


def test_it_looks_for_several_at_once(tmp_path: Path) -> None:
    """Behind tokens, and behind guesses: the same bits as alone."""
    path, ids = heads.with_head("glm4moe", tmp_path, "Q8_0"), proofs.expected("glm4moe").ids
    with opened(path) as engine:
        sequences = engine.begin(), engine.begin()
        engine.compute([Segment(s, np.array(ids[n : n + 20 + n], np.int32)) for n, s in enumerate(sequences)])
        looks = [Look(s, ids[50 + n], 20 + n) for n, s in enumerate(sequences)]
        for _ in range(2):
            alone = [[found[0].copy() for found in engine.look_further([look])] for look in looks]
            logits, states = engine.look_further(looks)
            for number, (expected_logits, expected_state) in enumerate(alone):
                np.testing.assert_array_equal(logits[number], expected_logits)
                np.testing.assert_array_equal(states[number], expected_state)
            looks = [Look(s, ids[60 + n], 21 + n, states[n]) for n, s in enumerate(sequences)]


def test_lanes_look_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ids = heads.with_head("glm4moe", tmp_path, "Q8_0"), proofs.expected("glm4moe").ids
    with opened(path) as engine:
        lanes = Lanes(engine)
        both = lanes.lane(), lanes.lane()
        for number, lane in enumerate(both):
            lane.evaluate(ids[number : number + 30])
        alone = [lane.evaluate_further(ids[50], 30)[0] for lane in both]
        together: list[int] = []
        look_further = engine.look_further
        monkeypatch.setattr(engine, "look_further", lambda looks: together.append(len(looks)) or look_further(looks))
        with ThreadPoolExecutor(2) as threads:
            with engine.lock:  # as during a batch
                found = [threads.submit(lane.evaluate_further, ids[50], 30) for lane in both]
                while len(lanes._asked) < 2:
                    time.sleep(0.001)
            for each, expected in zip(found, alone, strict=True):
                np.testing.assert_array_equal(each.result()[0], expected)
        assert together == [2]


def test_who_waits_is_told_what_went_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ids = heads.with_head("glm4moe", tmp_path, "Q8_0"), proofs.expected("glm4moe").ids
    with opened(path) as engine:
        lane = Lanes(engine).lane()
        lane.evaluate(ids[:30])
        expected = lane.evaluate_further(ids[50], 30)[0]
        for error in (NotEnoughMemory("no pages"), KeyboardInterrupt()):
            with monkeypatch.context() as patch:
                patch.setattr(engine, "look_further", Mock(side_effect=error))
                with pytest.raises(type(error)):
                    lane.evaluate_further(ids[50], 30)
            np.testing.assert_array_equal(lane.evaluate_further(ids[50], 30)[0], expected)


def test_sequences_have_pasts_of_their_own(tmp_path: Path) -> None:
    path, ids = heads.with_head("glm4moe", tmp_path, "Q8_0"), proofs.expected("glm4moe").ids
    with opened(path) as engine:
        looks_are_apart(engine, ids)


def test_lanes_look_further(tmp_path: Path) -> None:
    path, ids = heads.with_head("glm4moe", tmp_path, "Q8_0"), proofs.expected("glm4moe").ids
    with opened(path) as engine:
        engine.evaluate(ids[:30])
        expected = engine.evaluate_further(ids[30], 30)[0].copy()
        engine.reset()
        lane = Lanes(engine).lane()
        lane.evaluate(ids[:30])
        np.testing.assert_array_equal(lane.evaluate_further(ids[30], 30)[0], expected)
