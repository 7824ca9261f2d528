"""MTP heads: their logits match the oracle's, whatever the batches of the text."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import checkpoints
import draft_head_models
import numpy as np
import pytest
import reference_models
from speculative_helpers import check_draft_head_isolation, evaluate_draft_head

from localinfer import naive
from localinfer.errors import NotEnoughMemoryError
from localinfer.gguf.reader import GGUF, Tensor, open_gguf
from localinfer.options import Options
from localinfer.runtime.batch import Segment
from localinfer.runtime.draft_head_runner import DraftHeadInput, DraftHeadRunner
from localinfer.runtime.engine import Engine
from localinfer.runtime.scheduling.scheduled_engine import ScheduledEngine
from localinfer.runtime.scheduling.scheduler import Scheduler

EXACT = Options(ctx_size=128, threads=1, parallel=2, precision="high", cache_type_k="f32", cache_type_v="f32")
LENGTHS = (1, 7, 30, 31, 90)  # evaluated tokens


@contextlib.contextmanager
def opened(path: Path, **options: str | int) -> Iterator[Engine]:
    with contextlib.closing(Engine.load(open_gguf(path), replace(EXACT, **options))) as engine:  # type: ignore[arg-type]
        yield engine


@pytest.mark.parametrize(("name", "own"), [*((name, False) for name in draft_head_models.NAMES), ("glm4moe", True)])
def test_logits_match_the_oracle(name: str, own: bool, tmp_path: Path) -> None:
    path, ids = (
        draft_head_models.write_with_mtp_head(name, tmp_path, "F32", has_embeddings=own),
        reference_models.expected(name).ids,
    )
    model = naive.Model(open_gguf(path))
    model.ctx_size = EXACT.ctx_size
    expected = naive.mtp_logits(model, ids)
    with opened(path, parallel=1) as engine:
        for end in LENGTHS:  # after tokens of one batch and of several batches
            engine.evaluate(ids[engine.n_past : end])
            logits, _ = evaluate_draft_head(engine, ids[end], end)
            np.testing.assert_allclose(logits, expected[end], rtol=0, atol=1e-3)
            assert engine.n_past == end


@pytest.mark.parametrize("name", draft_head_models.computed_logits())
def test_naive_logits_are_those_of_torch(name: str, tmp_path: Path) -> None:
    model = naive.Model(open_gguf(draft_head_models.write_with_mtp_head(name, tmp_path, "F32")))
    model.ctx_size, reference = EXACT.ctx_size, reference_models.expected(name)
    actual = reference.part(naive.mtp_logits(model, reference.ids))
    np.testing.assert_allclose(actual, draft_head_models.computed_logits()[name], rtol=0, atol=1e-4)


def test_head_continues_its_own_draft(tmp_path: Path) -> None:
    """The head's own hidden states replace the model's; nothing is stored in the cache."""
    path, ids = (
        draft_head_models.write_with_mtp_head("glm4moe", tmp_path, "F32"),
        reference_models.expected("glm4moe").ids,
    )
    with opened(path) as engine:
        whole = engine.logits(ids)
        engine.reset()
        engine.evaluate(ids[:40])
        _, state = evaluate_draft_head(engine, ids[40], 40)
        first, _ = evaluate_draft_head(engine, ids[41], 41, state)
        again, _ = evaluate_draft_head(engine, ids[41], 41, state)
        first = first.copy()
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(engine.logits(ids[40:]), whole[40:])


def test_model_logits_do_not_depend_on_the_head(tmp_path: Path) -> None:
    path, ids = (
        draft_head_models.write_with_mtp_head("qwen35", tmp_path, "Q8_0"),
        reference_models.expected("qwen35").ids,
    )
    with opened(path, parallel=1) as engine, opened(path, parallel=1, spec_type="none") as plain:
        assert engine.compiled_graph.has_draft_head
        assert not plain.compiled_graph.has_draft_head
        np.testing.assert_array_equal(engine.logits(ids), plain.logits(ids))


@pytest.mark.parametrize("name", ["deepseek32", "glm-dsa"])
def test_mtp_layer_without_an_indexer_attends_to_all_positions(name: str, tmp_path: Path) -> None:
    """Its logits are those of an indexer that chooses all positions."""
    f = open_gguf(draft_head_models.write_with_mtp_head(name, tmp_path, "F32"))
    ids, number = reference_models.expected(name).ids, f.get(f"{name}.block_count", int) - 1
    without = {key: each for key, each in f.tensors.items() if not key.startswith(f"blk.{number}.indexer.")}
    assert len(without) == len(f.tensors) - 5
    wide, narrow = ({f"{name}.attention.indexer.top_k": top_k} for top_k in (len(ids), 16))

    def file(tensors: Mapping[str, Tensor], metadata: dict[str, int]) -> GGUF:
        return replace(f, tensors=tensors, metadata=f.metadata | metadata)

    expected = naive.mtp_logits(naive.Model(file(f.tensors, wide)), ids)
    np.testing.assert_array_equal(naive.mtp_logits(naive.Model(file(without, wide)), ids), expected)
    expected = naive.mtp_logits(naive.Model(file(without, narrow)), ids)
    with contextlib.closing(Engine.load(file(without, narrow), EXACT)) as engine:
        engine.evaluate(ids[:90])
        np.testing.assert_allclose(evaluate_draft_head(engine, ids[90], 90)[0], expected[90], rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["glm4moe", "deepseek4", "hy_v4", "dots3note-narrow", "glm-dsa"])
def test_batched_evaluation_is_bit_identical(name: str, tmp_path: Path) -> None:
    """Compare after tokens of the text and after draft tokens."""
    path, ids = (
        draft_head_models.write_with_mtp_head(name, tmp_path, "Q8_0"),
        reference_models.expected(name).ids,
    )
    with opened(path) as engine:
        sequences = engine.runner.new_sequence(), engine.runner.new_sequence()
        segments = [Segment(s, np.array(ids[n : n + 20 + n], np.int32)) for n, s in enumerate(sequences)]
        engine.runner.evaluate_segments(segments)
        inputs = [DraftHeadInput(s, ids[50 + n], 20 + n) for n, s in enumerate(sequences)]
        for _ in range(2):
            alone = [[actual[0].copy() for actual in engine.draft_head.evaluate([each])] for each in inputs]
            logits, states = engine.draft_head.evaluate(inputs)
            for number, (expected_logits, expected_state) in enumerate(alone):
                np.testing.assert_array_equal(logits[number], expected_logits)
                np.testing.assert_array_equal(states[number], expected_state)
            inputs = [DraftHeadInput(s, ids[60 + n], 21 + n, states[n]) for n, s in enumerate(sequences)]


def test_concurrent_requests_share_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ids = (
        draft_head_models.write_with_mtp_head("glm4moe", tmp_path, "Q8_0"),
        reference_models.expected("glm4moe").ids,
    )
    with opened(path) as engine:
        scheduler = Scheduler(engine.runner)
        both = ScheduledEngine(scheduler), ScheduledEngine(scheduler)
        for number, scheduled in enumerate(both):
            scheduled.evaluate(ids[number : number + 30])
        alone = [evaluate_draft_head(scheduled, ids[50], 30)[0] for scheduled in both]
        batched: list[int] = []
        evaluate_batch = engine.draft_head.evaluate
        monkeypatch.setattr(
            DraftHeadRunner, "evaluate", lambda _, inputs: batched.append(len(inputs)) or evaluate_batch(inputs)
        )
        with ThreadPoolExecutor(2) as threads:
            with engine.lock:  # as during a batch
                actual = [threads.submit(evaluate_draft_head, scheduled, ids[50], 30) for scheduled in both]
                while len(scheduler.draft_head) < 2:
                    time.sleep(0.001)
            for each, expected in zip(actual, alone, strict=True):
                np.testing.assert_array_equal(each.result()[0], expected)
        assert batched == [2]


def test_errors_reach_the_waiting_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ids = (
        draft_head_models.write_with_mtp_head("glm4moe", tmp_path, "Q8_0"),
        reference_models.expected("glm4moe").ids,
    )
    with opened(path) as engine:
        scheduled = ScheduledEngine(Scheduler(engine.runner))
        scheduled.evaluate(ids[:30])
        expected = evaluate_draft_head(scheduled, ids[50], 30)[0]
        for error in (NotEnoughMemoryError("no pages"), KeyboardInterrupt()):
            with monkeypatch.context() as patch:
                patch.setattr(DraftHeadRunner, "evaluate", Mock(side_effect=error))
                with pytest.raises(type(error)):
                    evaluate_draft_head(scheduled, ids[50], 30)
            np.testing.assert_array_equal(evaluate_draft_head(scheduled, ids[50], 30)[0], expected)


@pytest.mark.parametrize("name", ["glm4moe", "deepseek4", "hy_v4", "dots3note-narrow", "glm-dsa"])
def test_sequences_are_independent(name: str, tmp_path: Path) -> None:
    path, ids = (
        draft_head_models.write_with_mtp_head(name, tmp_path, "Q8_0"),
        reference_models.expected(name).ids,
    )
    with opened(path, parallel=3) as engine:  # two sequences, and a copy of one
        check_draft_head_isolation(engine, ids)


def test_scheduled_engine_has_a_draft_head(tmp_path: Path) -> None:
    path, ids = (
        draft_head_models.write_with_mtp_head("glm4moe", tmp_path, "Q8_0"),
        reference_models.expected("glm4moe").ids,
    )
    with opened(path) as engine:
        engine.evaluate(ids[:30])
        expected = evaluate_draft_head(engine, ids[30], 30)[0].copy()
        engine.reset()
        scheduled = ScheduledEngine(Scheduler(engine.runner))
        scheduled.evaluate(ids[:30])
        np.testing.assert_array_equal(evaluate_draft_head(scheduled, ids[30], 30)[0], expected)


@pytest.mark.parametrize("name", ["apertus-mha", "plamo2-narrow", "lfm2"])
def test_mtp_layers_of_other_families_are_ignored(name: str, tmp_path: Path) -> None:
    """Their files may have such layers, which llama.cpp keeps, too. Lists for each layer do not cover them."""
    path = checkpoints.as_type(reference_models.checkpoint(name, tmp_path), tmp_path / "model.gguf", "F32")
    f, ids = open_gguf(path), reference_models.expected(name).ids
    architecture, tensors, metadata = f.metadata["general.architecture"], dict(f.tensors), dict(f.metadata)
    last = int(metadata[f"{architecture}.block_count"]) - 1
    for each, tensor in f.tensors.items():
        if each.startswith(f"blk.{last}."):
            name = f"blk.{last + 1}.{each.split('.', 2)[2]}"
            tensors[name] = replace(tensor, name=name)
    joined = f"blk.{last + 1}.nextn.eh_proj.weight"
    tensors[joined] = replace(f.tensors["token_embd.weight"], name=joined)
    metadata |= {f"{architecture}.block_count": last + 2, f"{architecture}.nextn_predict_layers": 1}
    with (
        contextlib.closing(Engine.load(f, EXACT)) as plain,
        contextlib.closing(Engine.load(replace(f, tensors=tensors, metadata=metadata), EXACT)) as engine,
    ):
        assert not engine.compiled_graph.has_draft_head
        np.testing.assert_array_equal(engine.logits(ids), plain.logits(ids))
