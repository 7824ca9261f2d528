"""Speculative decoding does not change the text, for any drafter, right or wrong drafts, and any sampler."""

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference_models
from tiny import tiny_gemma3, tiny_llama

import localinfer
from localinfer import ContextOverflowError, LocalInferError, Model, Piece
from localinfer.generation.pieces import Stats
from localinfer.generation.speculative.draft_length import DraftLengthModel
from localinfer.generation.speculative.speculation import Speculation
from localinfer.generation.speculative.speculative_decoder import SpeculativeRun
from localinfer.options import Options

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 5, 6, 7]
HIGH_TEMPERATURE: dict[str, Any] = {"temp": 3.0, "top_k": 0, "min_p": 0.0, "seed": 7}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temp": 0},
    "sampled": HIGH_TEMPERATURE,
    "penalties": {"temp": 0, "repeat_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    "dry": {**HIGH_TEMPERATURE, "dry_multiplier": 0.8, "dry_allowed_length": 1},
    "xtc": {**HIGH_TEMPERATURE, "xtc_probability": 0.5, "xtc_threshold": 0.01},
    "mirostat": {"mirostat": 2, "mirostat_ent": 3.0, "seed": 1},
    "adaptive": {**HIGH_TEMPERATURE, "samplers": "adaptive_p", "adaptive_target": 0.3},
    "probabilities": {**HIGH_TEMPERATURE, "logprobs": 3},
    "regex": {**HIGH_TEMPERATURE, "regex": "(ab|[0-9]){40}"},
    "schema": {**HIGH_TEMPERATURE, "json_schema": '{"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 4}'},
    "stop": {**HIGH_TEMPERATURE, "stop": ("a", "7")},
    "cut off": {**HIGH_TEMPERATURE, "n_predict": 3},
}


class OracleDrafter:
    """A drafter that receives the text in advance and replaces some tokens by wrong ones."""

    is_cheap = True

    def __init__(self, text: Sequence[int], mistakes: float) -> None:
        self.text, self.mistakes, self.position = text, mistakes, 0
        self.random = random.Random(len(text))

    def accept_prompt(self, ids: Iterable[int]) -> None:
        pass

    def accept(self, _: int) -> None:
        self.position += 1

    def choose_length(self, min_tokens: int, max_tokens: int) -> float:
        self.max_tokens = max_tokens
        return 2.0

    def draft(self) -> list[int]:
        following = self.text[self.position : self.position + self.random.randint(0, self.max_tokens)]
        return [id if self.random.random() > self.mistakes else self.random.randrange(260) for id in following]


@pytest.fixture(scope="module", params=["llama", "gemma3", "lfm2", "qwen35"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Open a model. The last two have recurrent states. Small states are stored after each draft token,
    larger ones are not."""
    folder, tiny = tmp_path_factory.mktemp("model"), {"llama": tiny_llama, "gemma3": tiny_gemma3}
    if created := tiny.get(request.param):
        path = created(folder / "tiny.gguf")
    else:
        path = checkpoints.as_type(reference_models.checkpoint(request.param, folder), folder / "tiny.gguf", "Q8_0")
    with localinfer.load(path, threads=2, ctx_size=128, n_predict=80) as opened:
        if request.param == "qwen35":
            opened.engine.compiled_graph.model_graph.states.n_draft_states = 1
        yield opened


def run(model: Model, **options: Any) -> tuple[list[Piece], Stats, str]:
    """Return the pieces, the statistics, and the error at the end, if any."""
    model.engine.reset()
    pieces, problem, stream = [], "", model.stream(PROMPT, **options)
    try:
        pieces.extend(stream)
    except LocalInferError as error:
        problem = str(error)
    return pieces, stream.stats, problem


def ids_of(pieces: Iterable[Piece]) -> list[int]:
    return [piece.id for piece in pieces]


@pytest.fixture
def use_oracle_drafter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes runs use an `OracleDrafter`."""

    def use(text: Sequence[int], mistakes: float, most: int = 16) -> None:
        def new_run(speculation: Speculation, _: Options, stats: Stats) -> SpeculativeRun:
            length_model = DraftLengthModel()
            length_model.cost.update(1, 1e-3)
            drafters = [OracleDrafter(text, mistakes)]
            return SpeculativeRun(speculation._engine, drafters, length_model, stats, min_draft=0, max_draft=most)

        monkeypatch.setattr(Speculation, "new_run", new_run)

    return use


@pytest.mark.parametrize("sampling", SAMPLING)
def test_speculative_decoding_does_not_change_the_text(sampling: str, model: Model, use_oracle_drafter: Any) -> None:
    """Drafts are all right, mostly right, or all wrong."""
    alone, before, problem = run(model, spec_type="none", **SAMPLING[sampling])
    cached = list(model._session.tokens)
    for mistakes in (0.0, 0.2, 1.0):
        use_oracle_drafter(ids_of(alone), mistakes)
        pieces, stats, same_problem = run(model, **SAMPLING[sampling])
        assert pieces == alone, mistakes  # including texts and probabilities
        assert same_problem == problem
        assert (stats.generated_tokens, stats.finish_reason) == (before.generated_tokens, before.finish_reason)
        if sampling != "stop" and model.engine.sequence.can_rewind:
            assert model._session.tokens == cached
        if mistakes == 0.0 and len(alone) > 10:
            assert stats.accepted_tokens > 0
            assert stats.accepted_tokens >= stats.drafted_tokens - 16  # the last draft may be cut short


def test_without_drafts_there_is_no_speedup(model: Model, use_oracle_drafter: Any) -> None:
    """Two measurements of the same steps differ, which is not the work of drafts."""
    use_oracle_drafter([], 0.0, most=0)
    pieces, stats, _ = run(model, temp=0, n_predict=8)
    assert len(pieces) > 2
    assert (stats.drafted_tokens, stats.speedup) == (0, 1.0)


def test_draft_tokens_after_a_stop_string_are_not_accepted(model: Model, use_oracle_drafter: Any) -> None:
    alone, _, _ = run(model, spec_type="none", **HIGH_TEMPERATURE)
    stop = next(piece.text for piece in alone[3:] if piece.text.strip())
    use_oracle_drafter(ids_of(alone), 0.0)
    pieces, stats, _ = run(model, stop=(stop,), **HIGH_TEMPERATURE)
    assert stats.finish_reason == "stop"
    assert len(pieces) <= stats.generated_tokens < len(alone)
    assert stats.accepted_tokens < stats.generated_tokens


@pytest.mark.parametrize("mistakes", [0.0, 0.3])
def test_full_context_ends_a_run_at_the_same_token(mistakes: float, model: Model, use_oracle_drafter: Any) -> None:
    options = HIGH_TEMPERATURE | {"n_predict": -1, "ignore_eos": True}
    alone, _, problem = run(model, spec_type="none", **options)
    assert "context is full" in problem
    use_oracle_drafter([*ids_of(alone), *range(50)], mistakes)
    pieces, stats, same = run(model, **options)
    assert (ids_of(pieces), same, stats.finish_reason) == (ids_of(alone), problem, "context")


@pytest.mark.parametrize("mistakes", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("tiny", [tiny_llama, tiny_gemma3])
def test_ring_buffer_wraps(tiny: Any, mistakes: float, tmp_path: Path, use_oracle_drafter: Any) -> None:
    """Rejected draft tokens have only overwritten entries that are not attended to."""
    options = HIGH_TEMPERATURE | {"n_predict": 300, "ignore_eos": True}
    with localinfer.load(tiny(tmp_path / "m.gguf"), ctx_size=64, ctx_policy="ring", ubatch_size=20) as model:
        alone, _, _ = run(model, spec_type="none", **options)
        use_oracle_drafter(ids_of(alone), mistakes, most=48)
        assert ids_of(run(model, **options)[0]) == ids_of(alone)


def test_reasoning_budget_is_the_same(model: Model, use_oracle_drafter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.generation.reasoning.reasoning_tag_ids", lambda _: {7: 33})
    options = HIGH_TEMPERATURE | {"reasoning_budget": 5, "ignore_eos": True}
    alone, _, _ = run(model, spec_type="none", **options)
    assert alone[5].id == 33
    assert {piece.kind for piece in alone} == {"reasoning", "tag", "text"}
    use_oracle_drafter(ids_of(alone), 0.1)
    assert run(model, **options)[0] == alone


def test_custom_sampler_receives_the_same_arguments(model: Model, use_oracle_drafter: Any) -> None:
    observed: list[tuple[int, list[int]]] = []

    def sampler(logits: np.ndarray, ids: Sequence[int]) -> int:
        observed.append((int(logits.argmax()), list(ids)))
        return int((logits[:200].argmax() + len(ids)) % 200)

    alone = run(model, spec_type="none", sampler=sampler, ignore_eos=True)[0]
    before = list(observed)
    observed.clear()
    use_oracle_drafter(ids_of(alone), 0.2)
    assert run(model, sampler=sampler, ignore_eos=True)[0] == alone
    assert observed == before


def test_repetitions_are_drafted(model: Model) -> None:
    """A tiny greedy model soon repeats itself; tokens are drafted where that saves time."""
    options = {"temp": 0, "n_predict": 100, "ignore_eos": True}
    alone = run(model, spec_type="none", **options)[0]
    pieces, stats, _ = run(model, spec_type="ngram", **options)
    assert pieces == alone
    assert stats.accepted_tokens <= stats.drafted_tokens
    assert run(model, spec_type="ngram", spec_draft_n_max=0, **options)[1].drafted_tokens == 0


def test_new_run_ends_the_previous_one(model: Model, use_oracle_drafter: Any) -> None:
    text = ids_of(run(model, spec_type="none", **HIGH_TEMPERATURE)[0])
    use_oracle_drafter(text, 0.0)
    first = model.stream(PROMPT, **HIGH_TEMPERATURE)
    next(first), next(first)
    next(model.stream(PROMPT, **HIGH_TEMPERATURE))
    with pytest.raises(LocalInferError, match="another one was started"):
        next(first)


def test_prompt_that_fills_the_context(model: Model) -> None:
    with pytest.raises(ContextOverflowError):
        list(model.stream([5, 6] * 64, temp=0, ignore_eos=True))
