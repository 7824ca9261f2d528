"""Draft models: speculative decoding does not change the text; the draft model rewinds, and stops
if it does not pay."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference_models
from speculative_helpers import HIGH_TEMPERATURE, PROMPT, generate, make_draft_length_model
from tiny import Field, bpe_vocabulary, tiny_gemma3, tiny_llama

import localinfer
from localinfer import GenerationResult, UsageError
from localinfer.generation.speculative.draft_length import DraftLengthModel
from localinfer.generation.speculative.draft_model import AcceptanceRate, DraftModel
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "target.gguf")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write another model with the same vocabulary."""
    return tiny_llama(tmp_path_factory.mktemp("model") / "other.gguf", seed=1, n_layer=1)


@pytest.fixture
def engine(target: Path) -> Iterator[Engine]:
    opened = Engine.load(open_gguf(target), Options(ctx_size=128, threads=1))
    yield opened
    opened.close()


@pytest.mark.parametrize("sampling", [{"temp": 0}, HIGH_TEMPERATURE], ids=["greedy", "sampled"])
@pytest.mark.parametrize("spec_type", ["draft-simple", "ngram,draft-simple"])
@pytest.mark.parametrize("same", [True, False], ids=["itself", "another"])
def test_speculative_decoding_does_not_change_the_text(
    sampling: dict[str, Any], spec_type: str, same: bool, target: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "localinfer.generation.speculative.speculative_decoder.DraftLengthModel", make_draft_length_model
    )
    monkeypatch.setattr(DraftModel, "_relative_cost", 0.01)
    options = {"n_predict": 100, "ignore_eos": True, **sampling}
    with localinfer.load(target, spec_draft_model=str(target if same else other), ctx_size=128, threads=1) as model:
        alone = generate(model, spec_type="none", **options)
        assert alone.stats.drafted_tokens == 0
        assert generate(model, spec_type=spec_type, **options).tokens == alone.tokens
        again = generate(model, spec_type=spec_type, **options)
        assert again.tokens == alone.tokens
        if sampling == {"temp": 0} and same and spec_type == "draft-simple":  # the model drafts for itself
            assert again.stats.accepted_tokens == again.stats.drafted_tokens > 20


def test_concurrent_text_is_the_same(target: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of concurrent runs also share batches."""
    monkeypatch.setattr(
        "localinfer.generation.speculative.speculative_decoder.DraftLengthModel", make_draft_length_model
    )
    monkeypatch.setattr(DraftModel, "_relative_cost", 0.01)
    candidates = [
        {"n_predict": 60, "ignore_eos": True, **sampling}
        for sampling in ({"temp": 0}, HIGH_TEMPERATURE, {**HIGH_TEMPERATURE, "seed": 8})
    ]
    with localinfer.load(target, spec_draft_model=str(other), ctx_size=128, threads=1, parallel=3) as model:
        alone = [generate(model, spec_type="none", **sampling).tokens for sampling in candidates]
        model.engine.reset()

        def run(number: int) -> GenerationResult:
            return model.concurrent(number).generate(PROMPT, **candidates[number])

        with ThreadPoolExecutor(len(candidates)) as threads:
            results = list(threads.map(run, range(len(candidates))))
        assert [result.tokens for result in results] == alone
        assert all(result.stats.drafted_tokens > 0 for result in results)


def test_draft_model_rewinds_rejected_tokens(engine: Engine) -> None:
    """The cached tokens equal the text for any draft and any continuation."""
    draft, random = DraftModel(engine, make_draft_length_model(), engine.n_vocab, 0.1), np.random.default_rng(0)
    text = [*PROMPT]
    draft.accept_prompt(text)
    for _ in range(20):
        assert draft.choose_length(0, 5) > 1
        draft_tokens = draft.draft()
        assert engine.sequence.tokens[: len(text)] == text
        accepted = int(random.integers(0, len(draft_tokens) + 1))
        for id in [*draft_tokens[:accepted], int(random.integers(0, 270))]:
            draft.accept(id)
            text.append(id)
        draft._acceptance = AcceptanceRate(0.9)  # keeps the draft model from pausing


def test_draft_tokens_are_the_most_probable_tokens(engine: Engine) -> None:
    draft = DraftModel(engine, make_draft_length_model(), engine.n_vocab, 0.1)
    draft.accept_prompt(PROMPT)
    assert draft.choose_length(3, 3) > 1
    draft_tokens = draft.draft()
    engine.reset()
    rows = engine.logits([*PROMPT, *draft_tokens])[len(PROMPT) - 1 : -1]
    assert draft_tokens == rows.argmax(axis=1).tolist()


def test_a_text_with_images_gets_no_draft(engine: Engine) -> None:
    draft = DraftModel(engine, make_draft_length_model(), engine.n_vocab, 0.1)
    draft.accept_prompt([*PROMPT, -1, -2, 5])
    draft.accept(7)
    assert draft.choose_length(3, 3) == 1
    draft.accept_prompt(PROMPT)
    assert draft.choose_length(3, 3) > 1


def test_improbable_tokens_are_not_drafted(engine: Engine) -> None:
    draft = DraftModel(engine, make_draft_length_model(), engine.n_vocab, 0.1)
    draft.p_min = 1.0
    draft.accept_prompt(PROMPT)
    assert draft.choose_length(0, 5) > 1
    assert draft.draft() == []


def test_drafting_pauses_when_no_draft_token_is_accepted(engine: Engine) -> None:
    length_model = DraftLengthModel()
    length_model.cost.update(1, 1.0)
    draft = DraftModel(engine, length_model, 3, 0.1)  # a vocabulary of 3 tokens: no draft token is accepted
    draft.accept_prompt(PROMPT)
    tried = []
    for step in range(300):
        if draft.choose_length(0, 5) > 1 and draft.draft():
            tried.append(step)
        draft.accept(200)
    assert len([step for step in tried if step < 30]) < 20
    assert max(tried) > 100
    assert len(tried) < 60


def test_draft_model_with_a_shorter_context(target: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "localinfer.generation.speculative.speculative_decoder.DraftLengthModel", make_draft_length_model
    )
    monkeypatch.setattr(DraftModel, "_relative_cost", 0.01)
    options: dict[str, Any] = {"n_predict": 100, "ignore_eos": True, "temp": 0, "spec_type": "draft-simple"}
    with localinfer.load(target, spec_draft_model=str(target), ctx_size_draft=40, ctx_size=128, threads=1) as model:
        assert generate(model, **options).tokens == generate(model, **options | {"spec_type": "none"}).tokens
        assert 20 < generate(model, **options).stats.accepted_tokens <= 32


@pytest.mark.parametrize("kind", ["vocabulary", "size", "token"])
def test_draft_model_with_another_vocabulary_is_rejected(kind: str, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    tokens = bpe_vocabulary()["tokenizer.ggml.tokens"].value
    if kind == "vocabulary":
        tiny_gemma3(path)
        reason = "tokenizer.ggml.model is llama, not gpt2"
    else:
        changed = [*tokens]
        changed[7] = "other" if kind == "token" else changed[7]
        changed += [f"more{n}" for n in range(200)] if kind == "size" else []
        tiny_llama(path, **{"tokenizer.ggml.tokens": Field("ARRAY", changed, "STRING")})
        reason = "token 7 is b'other', not " if kind == "token" else f"it has {len(changed)} tokens, not {len(tokens)}"
    with pytest.raises(UsageError) as error:
        localinfer.load(target, spec_draft_model=str(path), ctx_size=64, threads=1)
    assert str(error.value).startswith(f"spec_draft_model: {path} cannot draft for target.gguf: {reason}")


def test_draft_model_cannot_be_set_for_a_run(target: Path) -> None:
    with localinfer.load(target, ctx_size=64, threads=1) as model:
        with pytest.raises(UsageError, match="can only be set when the model is loaded"):
            model.stream(PROMPT, spec_draft_model=str(target))
        with pytest.raises(UsageError, match="unknown type oracle; available: none ngram"):
            model.stream(PROMPT, spec_type="oracle")


@pytest.mark.parametrize("name", ["lfm2", "mamba2", "qwen35"])
def test_recurrent_models_as_draft_and_target(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "localinfer.generation.speculative.speculative_decoder.DraftLengthModel", make_draft_length_model
    )
    monkeypatch.setattr(DraftModel, "_relative_cost", 0.01)
    path = tmp_path / "m.gguf"
    checkpoints.as_type(reference_models.checkpoint(name, tmp_path), path, "Q8_0")
    with localinfer.load(path, spec_draft_model=str(path), ctx_size=128, threads=1) as model:
        for sampling in ({"temp": 0}, HIGH_TEMPERATURE):
            options: dict[str, Any] = {"n_predict": 60, "ignore_eos": True, **sampling}
            assert generate(model, **options).tokens == generate(model, spec_type="none", **options).tokens
            assert generate(model, **options).stats.drafted_tokens > 0
