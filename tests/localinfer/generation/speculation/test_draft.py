"""A draft model: its guesses change no text, it follows by rewinding, and knows when it does not pay."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import proofs
import pytest
from guessing import LIVELY, PROMPT, ids_of, pace
from tiny import Field, bpe_vocabulary, tiny_gemma3, tiny_llama

import localinfer
from localinfer import UsageError
from localinfer.engine.engine import Engine
from localinfer.files.gguf import open_gguf
from localinfer.generation.speculation.draft import Draft, Share
from localinfer.generation.speculation.pace import Pace
from localinfer.options import Options


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "target.gguf")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same tokens."""
    return tiny_llama(tmp_path_factory.mktemp("model") / "other.gguf", seed=1, n_layer=1)


@pytest.fixture
def engine(target: Path) -> Iterator[Engine]:
    opened = Engine(open_gguf(target), Options(ctx_size=128, threads=1))
    yield opened
    opened.close()


@pytest.mark.parametrize("way", [{"temp": 0}, LIVELY], ids=["greedy", "sampled"])
@pytest.mark.parametrize("spec_type", ["draft-simple", "ngram,draft-simple"])
@pytest.mark.parametrize("same", [True, False], ids=["itself", "another"])
def test_the_text_is_the_same(
    way: dict[str, Any], spec_type: str, same: bool, target: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localinfer.generation.speculation.speculation.Pace", pace)
    monkeypatch.setattr(Draft, "_each", 0.01)
    options = {"n_predict": 100, "ignore_eos": True, **way}
    with localinfer.load(target, spec_draft_model=str(target if same else other), ctx_size=128, threads=1) as model:
        alone = ids_of(model, spec_type="none", **options)
        assert model.stats.drafted_tokens == 0
        assert ids_of(model, spec_type=spec_type, **options) == alone
        assert ids_of(model, spec_type=spec_type, **options) == alone
        if way == {"temp": 0} and same and spec_type == "draft-simple":  # it knows what will come
            assert model.stats.accepted_tokens == model.stats.drafted_tokens > 20


def test_in_company_the_text_is_the_same(target: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that are computed together have guesses that are computed together."""
    monkeypatch.setattr("localinfer.generation.speculation.speculation.Pace", pace)
    monkeypatch.setattr(Draft, "_each", 0.01)
    ways = [{"n_predict": 60, "ignore_eos": True, **way} for way in ({"temp": 0}, LIVELY, {**LIVELY, "seed": 8})]
    with localinfer.load(target, spec_draft_model=str(other), ctx_size=128, threads=1, parallel=3) as model:
        alone = [ids_of(model, spec_type="none", **way) for way in ways]
        model.engine.reset()

        def text(number: int) -> list[int]:
            return [piece.id for piece in model.beside(number).generate(PROMPT, **ways[number])]

        with ThreadPoolExecutor(len(ways)) as threads:
            assert list(threads.map(text, range(len(ways)))) == alone
        assert all(model.beside(number).stats.drafted_tokens > 0 for number in range(len(ways)))


def test_it_follows_by_rewinding(engine: Engine) -> None:
    """Whatever was guessed, and whatever came instead."""
    draft, random = Draft(engine, pace(), engine.n_vocab, 0.1), np.random.default_rng(0)
    text = [*PROMPT]
    draft.read(text)
    for _ in range(20):
        assert draft.promise(0, 5) > 1
        guesses = draft.guesses()
        assert engine.sequence.tokens[: len(text)] == text
        right = int(random.integers(0, len(guesses) + 1))
        for id in [*guesses[:right], int(random.integers(0, 270))]:
            draft.follow(id)
            text.append(id)
        draft._all = Share(0.9)  # or it would give up


def test_guesses_are_the_most_probable_tokens(engine: Engine) -> None:
    draft = Draft(engine, pace(), engine.n_vocab, 0.1)
    draft.read(PROMPT)
    assert draft.promise(3, 3) > 1
    guesses = draft.guesses()
    engine.reset()
    rows = engine.logits([*PROMPT, *guesses])[len(PROMPT) - 1 : -1]
    assert guesses == rows.argmax(axis=1).tolist()


def test_improbable_tokens_are_not_guessed(engine: Engine) -> None:
    draft = Draft(engine, pace(), engine.n_vocab, 0.1)
    draft.p_min = 1.0
    draft.read(PROMPT)
    assert draft.promise(0, 5) > 1
    assert draft.guesses() == []


def test_it_gives_up_and_tries_again(engine: Engine) -> None:
    usual = Pace()
    usual.cost.tell(1, 1.0)
    draft = Draft(engine, usual, 3, 0.1)  # the other model has tokens 0 to 2 alone, so that no guess comes true
    draft.read(PROMPT)
    tried = []
    for step in range(300):
        if draft.promise(0, 5) > 1 and draft.guesses():
            tried.append(step)
        draft.follow(200)
    assert len([step for step in tried if step < 30]) < 20
    assert max(tried) > 100
    assert len(tried) < 60


def test_its_context_may_be_shorter(target: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.generation.speculation.speculation.Pace", pace)
    monkeypatch.setattr(Draft, "_each", 0.01)
    options: dict[str, Any] = {"n_predict": 100, "ignore_eos": True, "temp": 0, "spec_type": "draft-simple"}
    with localinfer.load(
        target, spec_draft_model=str(target), ctx_size_draft=40, ctx_size=128, threads=1) as model:
        assert ids_of(model, **options) == ids_of(model, **options | {"spec_type": "none"})
        ids_of(model, **options)
        assert 20 < model.stats.accepted_tokens <= 32


@pytest.mark.parametrize("kind", ["vocabulary", "size", "token"])
def test_other_tokens_are_refused(kind: str, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    tokens = bpe_vocabulary()["tokenizer.ggml.tokens"].value
    if kind == "vocabulary":
        tiny_gemma3(path)
        what = "tokenizer.ggml.model is llama, not gpt2"
    else:
        changed = [*tokens]
        changed[7] = "other" if kind == "token" else changed[7]
        changed += [f"more{n}" for n in range(200)] if kind == "size" else []
        tiny_llama(path, **{"tokenizer.ggml.tokens": Field("ARRAY", changed, "STRING")})
        what = "token 7 is b'other', not " if kind == "token" else f"it has {len(changed)} tokens, not {len(tokens)}"
    with pytest.raises(UsageError) as error:
        localinfer.load(target, spec_draft_model=str(path), ctx_size=64, threads=1)
    assert str(error.value).startswith(f"--spec-draft-model: {path} cannot guess for target.gguf: {what}")


def test_a_draft_model_is_chosen_at_loading(target: Path) -> None:
    with localinfer.load(target, ctx_size=64, threads=1) as model:
        with pytest.raises(UsageError, match="can only be chosen when the model is loaded"):
            model.generate(PROMPT, spec_draft_model=str(target))
        with pytest.raises(UsageError, match="there is no oracle, there are: none ngram"):
            model.generate(PROMPT, spec_type="oracle")


@pytest.mark.parametrize("name", ["lfm2", "mamba2", "qwen35"])
def test_models_with_a_state_guess_and_are_guessed_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localinfer.generation.speculation.speculation.Pace", pace)
    monkeypatch.setattr(Draft, "_each", 0.01)
    path = tmp_path / "m.gguf"
    checkpoints.as_type(proofs.checkpoint(name, tmp_path), path, "Q8_0")
    with localinfer.load(path, spec_draft_model=str(path), ctx_size=128, threads=1) as model:
        for way in ({"temp": 0}, LIVELY):
            options: dict[str, Any] = {"n_predict": 60, "ignore_eos": True, **way}
            assert ids_of(model, **options) == ids_of(model, spec_type="none", **options)
            ids_of(model, **options)
            assert model.stats.drafted_tokens > 0
