"""Guesses change no text: whoever guesses, right or wrong, and however tokens are chosen."""

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import proofs
import pytest
from tiny import tiny_gemma3, tiny_llama

import localinfer
from localinfer import ContextOverflow, LocalInferError, Model, Piece
from localinfer.generation.pieces import Stats
from localinfer.generation.session import Session
from localinfer.generation.speculation.pace import Pace
from localinfer.generation.speculation.speculation import Speculation
from localinfer.options import Options

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 5, 6, 7]
LIVELY: dict[str, Any] = {"temp": 3.0, "top_k": 0, "min_p": 0.0, "seed": 7}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temp": 0},
    "sampled": LIVELY,
    "penalties": {"temp": 0, "repeat_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    "dry": {**LIVELY, "dry_multiplier": 0.8, "dry_allowed_length": 1},
    "xtc": {**LIVELY, "xtc_probability": 0.5, "xtc_threshold": 0.01},
    "mirostat": {"mirostat": 2, "mirostat_ent": 3.0, "seed": 1},
    "adaptive": {**LIVELY, "samplers": "adaptive_p", "adaptive_target": 0.3},
    "probabilities": {**LIVELY, "logprobs": 3},
    "regex": {**LIVELY, "regex": "(ab|[0-9]){40}"},
    "schema": {**LIVELY, "json_schema": '{"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 4}'},
    "stop": {**LIVELY, "stop": ("a", "7")},
    "cut off": {**LIVELY, "n_predict": 3},
}


class Clairvoyant:
    """Guesses the text that will come, which it is told, with mistakes."""

    is_quick = True

    def __init__(self, text: Sequence[int], mistakes: float) -> None:
        self.text, self.mistakes, self.at = text, mistakes, 0
        self.random = random.Random(len(text))

    def read(self, ids: Iterable[int]) -> None:
        pass

    def follow(self, _: int) -> None:
        self.at += 1

    def promise(self, fewest: int, most: int) -> float:
        self.most = most
        return 2.0

    def guesses(self) -> list[int]:
        coming = self.text[self.at : self.at + self.random.randint(0, self.most)]
        return [id if self.random.random() > self.mistakes else self.random.randrange(260) for id in coming]


@pytest.fixture(scope="module", params=["llama", "gemma3", "lfm2", "qwen35"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Of the last two the past is a state: small ones are kept behind each guess, others behind what is sure."""
    folder, tiny = tmp_path_factory.mktemp("model"), {"llama": tiny_llama, "gemma3": tiny_gemma3}
    if made := tiny.get(request.param):
        path = made(folder / "tiny.gguf")
    else:
        path = checkpoints.as_type(proofs.checkpoint(request.param, folder), folder / "tiny.gguf", "Q8_0")
    with localinfer.load(path, threads=2, ctx_size=128, n_predict=80) as opened:
        if request.param == "qwen35":
            opened.engine.program.recorder.state.guesses = 1
        yield opened


def run(model: Model, **options: Any) -> tuple[list[Piece], Stats, str]:
    """What comes, and the error at the end, if one does."""
    model.engine.reset()
    pieces, problem = [], ""
    try:
        pieces.extend(model.generate(PROMPT, **options))
    except LocalInferError as error:
        problem = str(error)
    return pieces, model.stats, problem


def ids_of(pieces: Iterable[Piece]) -> list[int]:
    return [piece.id for piece in pieces]


@pytest.fixture
def clairvoyant(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have runs speculate with guesses of a text that is told in advance."""

    def use(text: Sequence[int], mistakes: float, most: int = 16) -> None:
        def speculation(session: Session, _: Options, stats: Stats) -> Speculation:
            pace = Pace()
            pace.cost.tell(1, 1e-3)
            guessers = [Clairvoyant(text, mistakes)]
            return Speculation(session._engine, guessers, pace, stats, fewest=0, most=most)

        monkeypatch.setattr(Session, "_speculation", speculation)

    return use


@pytest.mark.parametrize("mistakes", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_the_same(way: str, mistakes: float, model: Model, clairvoyant: Any) -> None:
    alone, before, problem = run(model, spec_type="none", **WAYS[way])
    remembered = list(model._session.tokens)
    clairvoyant(ids_of(alone), mistakes)
    pieces, stats, same_problem = run(model, **WAYS[way])
    assert pieces == alone  # texts and probabilities, too
    assert same_problem == problem
    assert (stats.generated_tokens, stats.finish_reason) == (before.generated_tokens, before.finish_reason)
    if way != "stop" and model.engine.rewinds:  # there may be tokens behind it; a state may lack some
        assert model._session.tokens == remembered
    if mistakes == 0.0 and len(alone) > 10:
        assert stats.accepted_tokens > 0
        assert stats.accepted_tokens >= stats.drafted_tokens - 16  # of the last pass


def test_guesses_behind_a_stop_text_did_not_come_true(model: Model, clairvoyant: Any) -> None:
    alone, _, _ = run(model, spec_type="none", **LIVELY)
    stop = next(piece.text for piece in alone[3:] if piece.text.strip())
    clairvoyant(ids_of(alone), 0.0)
    pieces, stats, _ = run(model, stop=(stop,), **LIVELY)
    assert stats.finish_reason == "stop"
    assert len(pieces) <= stats.generated_tokens < len(alone)
    assert stats.accepted_tokens < stats.generated_tokens


@pytest.mark.parametrize("mistakes", [0.0, 0.3])
def test_the_context_ends_where_it_ends(mistakes: float, model: Model, clairvoyant: Any) -> None:
    options = LIVELY | {"n_predict": -1, "ignore_eos": True}
    alone, _, problem = run(model, spec_type="none", **options)
    assert "context is full" in problem
    clairvoyant([*ids_of(alone), *range(50)], mistakes)
    pieces, stats, same = run(model, **options)
    assert (ids_of(pieces), same, stats.finish_reason) == (ids_of(alone), problem, "context")


@pytest.mark.parametrize("mistakes", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("tiny", [tiny_llama, tiny_gemma3])
def test_a_ring_turns(tiny: Any, mistakes: float, tmp_path: Path, clairvoyant: Any) -> None:
    """What wrong guesses have overwritten is nothing that is looked at."""
    options = LIVELY | {"n_predict": 300, "ignore_eos": True}
    with localinfer.load(tiny(tmp_path / "m.gguf"), ctx_size=64, ctx_policy="ring", ubatch_size=20) as model:
        alone, _, _ = run(model, spec_type="none", **options)
        clairvoyant(ids_of(alone), mistakes, most=48)
        assert ids_of(run(model, **options)[0]) == ids_of(alone)


def test_thoughts_have_the_same_budget(model: Model, clairvoyant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.generation.thoughts.tag_ids", lambda _: {7: 33})
    options = LIVELY | {"reasoning_budget": 5, "ignore_eos": True}
    alone, _, _ = run(model, spec_type="none", **options)
    assert alone[5].id == 33
    assert {piece.kind for piece in alone} == {"thought", "tag", "text"}
    clairvoyant(ids_of(alone), 0.1)
    assert run(model, **options)[0] == alone


def test_a_sampler_of_one_s_own_sees_the_same(model: Model, clairvoyant: Any) -> None:
    seen: list[tuple[int, list[int]]] = []

    def sampler(logits: np.ndarray, ids: Sequence[int]) -> int:
        seen.append((int(logits.argmax()), list(ids)))
        return int((logits[:200].argmax() + len(ids)) % 200)

    alone = run(model, spec_type="none", sampler=sampler, ignore_eos=True)[0]
    before = list(seen)
    seen.clear()
    clairvoyant(ids_of(alone), 0.2)
    assert run(model, sampler=sampler, ignore_eos=True)[0] == alone
    assert seen == before


def test_repetitions_are_guessed(model: Model) -> None:
    """A greedy tiny model goes in circles before long; guesses are made where they pay, whatever that is here."""
    options = {"temp": 0, "n_predict": 100, "ignore_eos": True}
    alone = run(model, spec_type="none", **options)[0]
    pieces, stats, _ = run(model, spec_type="ngram", **options)
    assert pieces == alone
    assert stats.accepted_tokens <= stats.drafted_tokens
    assert run(model, spec_type="ngram", spec_draft_n_max=0, **options)[1].drafted_tokens == 0


def test_another_run_ends_one_at_once(model: Model, clairvoyant: Any) -> None:
    text = ids_of(run(model, spec_type="none", **LIVELY)[0])
    clairvoyant(text, 0.0)
    first = model.generate(PROMPT, **LIVELY)
    next(first), next(first)
    next(model.generate(PROMPT, **LIVELY))
    with pytest.raises(LocalInferError, match="another one was started"):
        next(first)


def test_a_prompt_that_fills_the_context(model: Model) -> None:
    with pytest.raises(ContextOverflow):
        list(model.generate([5, 6] * 64, temp=0, ignore_eos=True))
