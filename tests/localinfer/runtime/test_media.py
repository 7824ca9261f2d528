"""Embeddings of images take the place of tokens: the logits are those of the oracle, and the same bits for any division
into batches, with cached prefixes, and beside other sequences."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference_models
from engine_helpers import Logits, Write, assert_close, biased, media_ids
from media_rows import enclosed, random_rows
from tiny import tiny_gemma3, tiny_llama, tiny_qwen2

from localinfer import naive
from localinfer.errors import LocalInferError, UsageError
from localinfer.generation.session import GenerationSession
from localinfer.generation.token_selection import model_sampler
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions
from localinfer.runtime.media import media_table
from localinfer.runtime.media.media_embeddings import MediaEmbeddings
from localinfer.runtime.scheduling.scheduled_engine import ScheduledEngine
from localinfer.runtime.scheduling.scheduler import Scheduler
from localinfer.tokenizer import tokenizer


def cogvlm(path: Path) -> Path:
    """Write a model that multiplies rows of images with other matrices than those of text."""
    return checkpoints.as_type(reference_models.checkpoint("cogvlm", path.parent), path, "Q8_0")


CAUSAL = [random_rows("a", 20, n_positions=5), random_rows("b", 9)]
BIDIRECTIONAL = [random_rows("a", 20, bidirectional=True), random_rows("b", 9, bidirectional=True)]
VISUAL_EXPERT = [
    random_rows("a", 20, 96, n_positions=3, coordinates=enclosed(18)),
    random_rows("b", 9, 96, n_positions=3, coordinates=enclosed(7)),
]
CASES: dict[str, tuple[Write, Sequence[MediaEmbeddings], dict[str, Any]]] = {
    "causal": (tiny_qwen2, CAUSAL, {}),
    "bidirectional": (tiny_gemma3, BIDIRECTIONAL, {"batch_size": 32}),
    "visual expert": (cogvlm, VISUAL_EXPERT, {}),
    "ring": (tiny_llama, CAUSAL, {"ctx_policy": "ring", "ctx_size": 64, "batch_size": 32}),
}
each_case = pytest.mark.parametrize("case", CASES)


def load(path: Path, *, media: bool = True, **options: Any) -> Engine:
    defaults = {"threads": 2, "ctx_size": 150, "precision": "high", "parallel": 4}
    return Engine.load(open_gguf(path), Options(**(defaults | options)), extensions=Extensions(media=media))


def prompt(engine: Engine, images: Sequence[MediaEmbeddings], first: int = 5) -> list[int]:
    """Return text with the first image, then the second one twice."""
    a, b = (media_ids(engine, each) for each in images)
    return [*range(first, first + 25), *a, *range(40, 60), *b, *b, *range(3, 20)]


def opened(case: str, folder: Path) -> tuple[Engine, list[int]]:
    write, images, options = CASES[case]
    engine = load(write(folder / "m.gguf"), **options)
    return engine, prompt(engine, images)


def expected_logits(path: Path, tokens: Sequence[int], images: Sequence[MediaEmbeddings], **settings: int) -> Logits:
    model = naive.Model(open_gguf(path))
    model.media = images
    for name, value in settings.items():
        setattr(model, name, value)
    return naive.forward(model, tokens)


@each_case
def test_logits_are_those_of_exact_arithmetic(case: str, tmp_path: Path) -> None:
    engine, tokens = opened(case, tmp_path)
    settings = {"n_ctx": 64, "sinks": 4} if case == "ring" else {}
    with closing(engine):
        logits = engine.logits(tokens)
    assert_close(logits, expected_logits(tmp_path / "m.gguf", tokens, CASES[case][1], **settings))


def test_logits_with_anchored_keys_are_close_to_exact_ones(tmp_path: Path) -> None:
    """Anchors are the rotated biases in the middle of a page, so the positions of pages after an image matter."""
    images = [random_rows("a", 60, n_positions=2), random_rows("b", 9)]
    path = biased(tmp_path / "m.gguf")
    with closing(load(path, cache_type_k="q8_0", cache_type_v="f32")) as engine:
        tokens = prompt(engine, images)
        logits = engine.logits(tokens)
    expected = expected_logits(path, tokens, images)
    assert np.sqrt(np.mean((logits - expected) ** 2)) < 0.05


@each_case
def test_any_division_gives_the_same_bits(case: str, tmp_path: Path) -> None:
    engine, tokens = opened(case, tmp_path)
    with closing(engine):
        logits = engine.logits(tokens).copy()
        engine.reset()
        last = engine.evaluate(tokens).copy()
        np.testing.assert_array_equal(last, logits[-1])
        engine.reset()
        for first, end in ((0, 25), (25, 45), (45, 46), (46, 74), (74, 83), (83, 91)):
            np.testing.assert_array_equal(engine.evaluate(tokens[first:end]), logits[end - 1])
        for at in range(91, len(tokens)):
            np.testing.assert_array_equal(engine.evaluate([tokens[at]]), logits[at])


@pytest.mark.parametrize("case", ["causal", "bidirectional"])
def test_a_rewound_sequence_continues_with_the_same_bits(case: str, tmp_path: Path) -> None:
    engine, tokens = opened(case, tmp_path)
    with closing(engine):
        expected = engine.evaluate(tokens).copy()
        for n, border in ((90, 90), (70, 65), (60, 60), (40, 25)):
            end = engine.rewind(n)
            assert end in (n if case == "causal" else border, 0)  # 0: a window no longer holds what is needed
            np.testing.assert_array_equal(engine.evaluate(tokens[end:]), expected)
        other = [*tokens[:10], *media_ids(engine, CASES[case][1][1]), *range(5, 9)]
        engine.reuse_prefix(other, len(other) - 1)
        reused = engine.evaluate(other[engine.n_past :]).copy()
        engine.reset()
        np.testing.assert_array_equal(engine.evaluate(other), reused)


def test_a_reused_prefix_ends_at_the_border_of_a_bidirectional_span(tmp_path: Path) -> None:
    with closing(load(tiny_gemma3(tmp_path / "m.gguf", sliding_window=0))) as engine:
        a = media_ids(engine, BIDIRECTIONAL[0])
        engine.evaluate([1, 2, 3, *a, 4])
        assert engine.rewind(15) == 3
        engine.evaluate([*a, 4])
        assert engine.reuse_prefix([1, 2, 3, *a, 5], 22) == 3
        engine.evaluate([*a, 4])
        assert engine.reuse_prefix([1, 2, 3, *a, 5], 23) == 23


def test_text_has_the_same_bits_with_and_without_media_input(tmp_path: Path) -> None:
    path, tokens = tiny_gemma3(tmp_path / "m.gguf"), list(range(3, 90))
    results = []
    for media in (False, True):
        with closing(load(path, media=media)) as engine:
            names = {op.name for op in engine.graph.ops}
            assert ("media" in names) == media
            results.append(engine.logits(tokens).copy())
    np.testing.assert_array_equal(*results)


def test_media_need_a_model_that_was_loaded_for_them(tmp_path: Path) -> None:
    with closing(load(tiny_llama(tmp_path / "m.gguf"), media=False)) as engine:
        with pytest.raises(UsageError, match="loaded without a projector"):
            engine.prompt_media.begin()(CAUSAL[0])
        with pytest.raises(UsageError, match="a token id is out of range"):
            engine.evaluate([1, -1])


def test_ids_that_are_not_in_the_table_are_rejected(tmp_path: Path) -> None:
    with closing(load(tiny_llama(tmp_path / "m.gguf"))) as engine:
        media_ids(engine, CAUSAL[0])
        for wrong in ([1, -21], [-(1 << 31)], [1, -5], [1, -1, -2, 3]):
            with pytest.raises(UsageError, match="tokens: "):
                engine.evaluate(wrong)
        assert engine.n_past == 0


def test_rows_that_were_dropped_must_be_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_table, "MAX_BYTES", CAUSAL[0].rows.nbytes)
    with closing(load(tiny_llama(tmp_path / "m.gguf"))) as engine:
        a = media_ids(engine, replace(CAUSAL[0]))
        expected = engine.evaluate([1, *a, 2]).copy()
        media_ids(engine, CAUSAL[1])
        np.testing.assert_array_equal(engine.evaluate([2][: engine.rewind(21)]), expected)  # the rows are cached
        engine.reset()
        with pytest.raises(LocalInferError, match="no longer in memory"):
            engine.evaluate([1, *a, 2])
        assert media_ids(engine, CAUSAL[0]) == a
        engine.reset()
        np.testing.assert_array_equal(engine.evaluate([1, *a, 2]), expected)


def test_all_rows_of_a_prompt_stay_until_it_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(load(tiny_llama(tmp_path / "m.gguf"))) as engine:
        session = GenerationSession(engine, tokenizer.from_gguf(engine.file))
        images = [random_rows(name, 20) for name in "abcd"]
        options = Options(n_predict=4, temp=0, ignore_eos=True, cache_prompt=False)

        def generated(ids_of: Callable[[MediaEmbeddings], list[int]]) -> list[int]:
            tokens = [1, *(id for image in images for id in ids_of(replace(image)))]
            _, pieces = session.run(tokens, options)
            return [piece.id for piece in pieces]

        expected = generated(partial(media_ids, engine))
        engine.reset()
        monkeypatch.setattr(media_table, "MAX_BYTES", images[0].rows.nbytes)
        assert generated(engine.prompt_media.begin()) == expected
        engine.reset()
        assert generated(engine.prompt_media.begin()) == expected
        with pytest.raises(LocalInferError, match="no longer in memory"):
            generated(partial(media_ids, engine))


def test_other_sequences_do_not_drop_the_rows_of_a_waiting_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_table, "MAX_BYTES", CAUSAL[0].rows.nbytes)
    with closing(load(tiny_llama(tmp_path / "m.gguf"))) as engine:
        text_tokenizer, scheduler = tokenizer.from_gguf(engine.file), Scheduler(engine.runner)
        engines = [ScheduledEngine(scheduler) for _ in range(3)]
        options, pieces = Options(n_predict=4, temp=0, ignore_eos=True), []
        for number, each in enumerate(engines):  # all are encoded before the first is evaluated
            ids = each.prompt_media.begin()(random_rows(str(number), 20))
            pieces.append(GenerationSession(each, text_tokenizer).run([1, *ids, 2], options)[1])
        with ThreadPoolExecutor(len(pieces)) as threads:
            assert [len(answer) for answer in threads.map(list, pieces)] == [4, 4, 4]
        scheduler.close()


@each_case
def test_batched_sequences_compute_the_bits_of_separate_ones(case: str, tmp_path: Path) -> None:
    """Spans that attend both ways share batches with decode steps, and are larger than the slices of prompts."""
    write, images, options = CASES[case]
    with closing(load(write(tmp_path / "m.gguf"), **options)) as engine:
        prompts = [prompt(engine, images, first) for first in (5, 6, 7)] + [list(range(3, 60))]
        expected = []
        for tokens in prompts:
            engine.reset()
            answer = [engine.evaluate(tokens).copy()]
            for _ in range(8):
                answer.append(engine.evaluate([int(answer[-1].argmax())]).copy())
            expected.append(answer)
        engine.reset()
        scheduler = Scheduler(engine.runner)

        def run(scheduled: ScheduledEngine, tokens: list[int], answer: list[Logits]) -> None:
            for _ in range(3):
                n = scheduled.reuse_prefix(tokens, len(tokens) - 1)
                logits = scheduled.evaluate(tokens[n:])
                np.testing.assert_array_equal(logits, answer[0])
                for after in answer[1:]:
                    logits = scheduled.evaluate([int(logits.argmax())])
                    np.testing.assert_array_equal(logits, after)
            scheduled.mark_idle()

        with ThreadPoolExecutor(len(prompts)) as threads:
            list(threads.map(run, [ScheduledEngine(scheduler) for _ in prompts], prompts, expected))
        scheduler.close()


@each_case
@pytest.mark.parametrize("spec_type", ["none", "ngram"])
def test_speculation_does_not_change_the_text_after_an_image(case: str, spec_type: str, tmp_path: Path) -> None:
    engine, tokens = opened(case, tmp_path)
    with closing(engine):
        text_tokenizer = tokenizer.from_gguf(engine.file)
        session = GenerationSession(engine, text_tokenizer)
        options = Options(
            n_predict=40, temp=0, ignore_eos=True, repeat_penalty=1.1, repeat_last_n=-1, dry_multiplier=0.5,
            spec_type=spec_type,
        )  # fmt: skip
        _, pieces = session.run(tokens, options)
        ids = [piece.id for piece in pieces]
        engine.reset()
        expected, chain = list[int](), model_sampler(options, engine, text_tokenizer)
        logits = engine.evaluate(tokens)
        for _ in range(40):
            seen = [id for id in engine.sequence.tokens if id >= 0]
            expected.append(chain(logits, seen))
            logits = engine.evaluate([expected[-1]])
    assert ids == expected
