"""A model's own head that looks further ahead: its guesses change no text, alone and in company."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import heads
import pytest
from guessing import LIVELY, PROMPT, ids_of, pace
from tiny import tiny_llama

import localinfer
from localinfer import Model
from localinfer.errors import Unsupported, UsageError
from localinfer.generation.speculation.head import Head

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temp": 0},
    "sampled": LIVELY,
    "penalties": {"temp": 0, "repeat_penalty": 1.2},
}
OPTIONS: dict[str, Any] = {"n_predict": 80, "ignore_eos": True}


@pytest.fixture(scope="module", params=["glm4moe", "qwen35", "eagle3"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model with a head, or the two files of a pair."""
    folder = tmp_path_factory.mktemp("model")
    if request.param == "eagle3":
        pair = heads.beside(request.param, folder, "Q8_0")
        return {"path_or_name": str(pair.model), "spec_draft_model": str(pair.head)}
    return {"path_or_name": str(heads.with_head(request.param, folder, "Q8_0"))}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses cost nothing, so that many are made."""
    monkeypatch.setattr("localinfer.generation.speculation.speculation.Pace", pace)
    monkeypatch.setattr(Head, "_each", 0.01)


@pytest.fixture
def model(files: dict[str, Any], eager: None) -> Iterator[Model]:
    with localinfer.load(**files, ctx_size=128, threads=1, parallel=3, spec_draft_n_min=2) as opened:
        yield opened


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spec_type", ["draft-mtp", "ngram,draft-mtp"])
def test_the_text_is_the_same(way: str, spec_type: str, model: Model) -> None:
    options = OPTIONS | WAYS[way]
    alone = ids_of(model, spec_type="none", **options)
    assert model.stats.drafted_tokens == 0
    assert ids_of(model, spec_type=spec_type, **options) == alone
    assert ids_of(model, spec_type=spec_type, **options) == alone
    assert model.stats.drafted_tokens > 0


def test_in_company_the_text_is_the_same(model: Model) -> None:
    ways = [OPTIONS | way for way in WAYS.values()]
    alone = [ids_of(model, spec_type="none", **way) for way in ways]
    model.engine.reset()

    def text(number: int) -> list[int]:
        return [piece.id for piece in model.beside(number).generate(PROMPT, spec_type="draft-mtp", **ways[number])]

    with ThreadPoolExecutor(len(ways)) as threads:
        assert list(threads.map(text, range(len(ways)))) == alone
    assert sum(model.beside(number).stats.drafted_tokens for number in range(len(ways))) > 0


def test_without_a_head_nobody_looks_further(tmp_path: Path) -> None:
    with localinfer.load(tiny_llama(tmp_path / "m.gguf"), ctx_size=64, threads=1) as model:
        assert not model.engine.looks_further
        ids_of(model, spec_type="draft-mtp", n_predict=20)
        assert model.stats.drafted_tokens == 0


def test_what_is_remembered_is_of_the_pair(tmp_path: Path) -> None:
    """A snapshot made without the head is not one of both."""
    pair, kept = heads.beside("eagle3", tmp_path, "Q8_0"), tmp_path / "kept"
    given: dict[str, Any] = {"ctx_size": 64, "threads": 1}
    with localinfer.load(pair.model, **given) as model:
        ids_of(model, n_predict=20)
        model.save_cache(kept)
    with localinfer.load(pair.model, spec_draft_model=str(pair.head), **given) as model:
        with pytest.warns(UserWarning, match="is of another model"):
            assert model.load_cache(kept) == 0
        ids_of(model, n_predict=20)
        model.save_cache(kept)
        assert model.load_cache(kept) > 0


def test_a_head_is_no_model(tmp_path: Path) -> None:
    pair = heads.beside("eagle3", tmp_path)
    with pytest.raises(Unsupported, match="'eagle3' is a head that guesses for another model: --spec-draft-model"):
        localinfer.load(pair.head)


def test_a_head_does_not_guess_as_a_model_does(tmp_path: Path) -> None:
    """Nor the other way round; where neither is asked to guess, nothing is said."""
    pair, draft = heads.beside("eagle3", tmp_path), tiny_llama(tmp_path / "draft.gguf")
    with pytest.raises(UsageError, match=r"^--spec-type ngram,draft-simple: .* is a head .* as draft-eagle3$"):
        localinfer.load(pair.model, spec_draft_model=str(pair.head), spec_type="ngram,draft-simple")
    with pytest.raises(UsageError, match=r"^--spec-type draft-eagle3: .* is a model .* as draft-simple$"):
        localinfer.load(tiny_llama(tmp_path / "m.gguf"), spec_draft_model=str(draft), spec_type="draft-eagle3")
    localinfer.load(pair.model, spec_draft_model=str(pair.head), spec_type="none").close()


def test_a_head_knows_the_same_tokens(tmp_path: Path) -> None:
    pair, other = heads.beside("eagle3", tmp_path), tiny_llama(tmp_path / "other.gguf")
    with pytest.raises(UsageError, match=r"cannot guess for other\.gguf"):
        localinfer.load(other, spec_draft_model=str(pair.head))
