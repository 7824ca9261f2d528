"""Constrained answers that reach their limit of tokens are closed there, and those that do not stay as they are."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from constraints import constraint_spec, worker_vocabulary
from random_schemas import random_schema
from tiny import CHATML, Field, tiny_gemma3, tiny_llama

import localinfer
from localinfer import GenerationResult, IncompleteOutputError, Model
from localinfer.errors import ConstraintError
from localinfer.generation.structured.byte_vocabulary import ByteVocabulary
from localinfer.generation.structured.closing import Closings
from localinfer.generation.structured.vocabulary import Vocabulary

PROMPT = "Hello and"
WORDS = {"type": "object", "properties": {"words": {"type": "array", "items": {"type": "string"}, "minItems": 9}},
         "required": ["words"], "additionalProperties": False}  # fmt: skip
LIMIT = 70  # tokens, which are too few for what the models write, but enough for a document
TEMPLATE = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}" + CHATML
TOOL = {"type": "function", "function": {"name": "add", "parameters": WORDS}}
QUESTION = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module", params=[tiny_llama, tiny_gemma3])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = Field("STRING", TEMPLATE)
    path: Path = request.param(tmp_path_factory.mktemp("model") / "tiny.gguf", **{"tokenizer.chat_template": template})
    return path


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with localinfer.load(path, threads=2, ctx_size=512, parallel=2, temp=1.5, seed=1) as loaded:
        yield loaded


def outcome(model: Model, **options: Any) -> GenerationResult | str:
    """Return the result of a run, or the error of an incomplete answer."""
    try:
        return model.generate(PROMPT, **options)
    except IncompleteOutputError as error:
        return str(error)


def tokens_of_run(model: Model, **options: Any) -> list[int]:
    """Return the tokens of a run, also if they are cut off."""
    tokens: list[int] = []
    with contextlib.suppress(IncompleteOutputError):
        tokens.extend(piece.id for piece in model.stream(PROMPT, **options))
    return tokens


def closings_of(model: Model, schema: dict[str, Any], ids: Sequence[int] = ()) -> Closings:
    """Return the closings of an answer that begins with these tokens."""
    vocabulary = ByteVocabulary(worker_vocabulary(Vocabulary(model.tokenizer, model.n_vocab)))
    closings = Closings(constraint_spec(json_schema=json.dumps(schema)).grammar, vocabulary)
    closings.follow(ids)
    return closings


def random_cases() -> Iterator[tuple[int, dict[str, Any], int]]:
    for seed in range(12):
        random = np.random.default_rng(seed)
        yield seed, random_schema(random), int(random.integers(2, 120))


def test_every_answer_with_enough_tokens_is_valid(model: Model) -> None:
    n_closed, n_cut_off = 0, 0
    for seed, schema, limit in random_cases():
        options = {"schema": schema, "seed": seed, "n_predict": limit}
        result = outcome(model, **options)
        if isinstance(result, str):
            assert not closings_of(model, schema).now(limit).fits(limit), f"{seed}: {result}"
            n_cut_off += 1
            continue
        jsonschema.validate(json.loads(result.text), schema)
        assert len(result.tokens) <= limit
        free = tokens_of_run(model, **options, close_at_limit=False)
        if not result.stats.closed_at_limit:
            assert result.tokens == free
            continue
        n_closed += 1
        assert result.stats.closed_at_limit == limit
        assert result.finish_reason == result.stats.finish_reason == "length"
        n_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(result.tokens, free, strict=False)))
        n_left = limit - n_same
        closings = closings_of(model, schema, free[:n_same])  # it begins where it must
        assert closings.now(n_left).fits(n_left)
        assert not closings.after(free[n_same], n_left - 1).fits(n_left - 1)
    assert n_closed > 2
    assert n_cut_off


def test_runs_side_by_side_are_those_of_runs_alone(model: Model) -> None:
    cases = [{"schema": schema, "seed": seed, "n_predict": limit} for seed, schema, limit in random_cases()][:4]
    alone = [tokens_of_run(model, **case) for case in cases]
    with ThreadPoolExecutor(2) as threads:
        together = threads.map(
            lambda slot: [tokens_of_run(model.concurrent(slot), **case) for case in cases[slot::2]], range(2)
        )
        assert list(together) == [alone[slot::2] for slot in range(2)]
    assert [tokens_of_run(model, **case) for case in cases] == alone  # the same seeds


def test_speculation_changes_nothing(model: Model) -> None:
    n_accepted = 0
    for seed in range(4):
        options = {"schema": WORDS, "seed": seed, "n_predict": LIMIT, "temp": 0.3}
        drafted = model.generate(PROMPT, **options, spec_type="ngram", spec_draft_n_min=4, spec_draft_n_max=8)
        plain = model.generate(PROMPT, **options, spec_type="none")
        assert drafted.tokens == plain.tokens
        assert drafted.stats.closed_at_limit == plain.stats.closed_at_limit
        n_accepted += drafted.stats.accepted_tokens
    assert n_accepted > 0


def test_log_probabilities_are_those_of_the_model(model: Model) -> None:
    result = model.generate(PROMPT, schema=WORDS, n_predict=LIMIT, logprobs=1, seed=2)
    assert result.stats.closed_at_limit
    expected = model.score(PROMPT, result.tokens)
    assert [token.logprob for token in result.logprobs] == [piece.logprob for piece in expected]


def test_stream_ends_with_the_closing(model: Model) -> None:
    stream = model.stream(PROMPT, schema=WORDS, n_predict=LIMIT, seed=2)
    pieces = list(stream)
    assert stream.stats.generated_tokens == len(pieces) <= LIMIT
    assert stream.stats.closed_at_limit == LIMIT
    jsonschema.validate(json.loads("".join(piece.text for piece in pieces)), WORDS)


def test_cut_off_on_request_or_without_room(model: Model) -> None:
    for options in ({"close_at_limit": False}, {"n_predict": 3}):
        assert "cut off" in str(outcome(model, **{"schema": WORDS, "n_predict": LIMIT, "seed": 2} | options))


def test_end_of_the_context(path: Path) -> None:
    with localinfer.load(path, threads=2, ctx_size=96, temp=1.5, seed=2) as model:
        result = model.generate(PROMPT, schema=WORDS)
        jsonschema.validate(json.loads(result.text), WORDS)
        assert result.finish_reason == "length"
        n_prompt = result.stats.prompt_tokens
        assert result.stats.closed_at_limit == 96 - n_prompt + 1


def test_ring_buffer_has_no_end(path: Path) -> None:
    with localinfer.load(path, threads=2, ctx_size=64, ctx_policy="ring", temp=1.5, seed=2) as model:
        result = model.generate(PROMPT, schema=WORDS, n_predict=120)
        jsonschema.validate(json.loads(result.text), WORDS)
        assert result.stats.closed_at_limit == 120
        assert len(result.tokens) > 80


@pytest.mark.parametrize("options", [
    {"json_mode": True}, {"grammar": 'root ::= "<" [^>]* ">" root?'}, {"regex": '"([^"]|\\\\")*"'},
])  # fmt: skip
def test_other_constraints(model: Model, options: dict[str, Any]) -> None:
    for seed in range(3):
        text = model.generate(PROMPT, **options, n_predict=30, seed=seed).text
        if "json_mode" in options:
            json.loads(text)
        else:
            assert text[-1] == (">" if "grammar" in options else '"')


def test_closing_that_is_not_found(model: Model) -> None:
    """An answer whose shortest end has thousands of tokens is as without closings."""
    options = {"regex": "[ab]{1900}c|[ab]{5000}d", "n_predict": 20, "seed": 1}
    assert "cut off" in str(outcome(model, **options))
    assert tokens_of_run(model, **options) == tokens_of_run(model, **options, close_at_limit=False)


def test_custom_sampler(model: Model) -> None:
    """A sampler that never ends a string is not asked for the closing."""
    asked = []

    def last_allowed(logits: np.ndarray, ids: list[int]) -> int:
        asked.append(len(ids))
        return int(np.flatnonzero(logits > -np.inf)[-1])

    result = model.generate(PROMPT, schema=WORDS, n_predict=LIMIT, sampler=last_allowed)
    jsonschema.validate(json.loads(result.text), WORDS)
    assert len(asked) < len(result.tokens) + 1


def test_forced_calls_are_closed(model: Model) -> None:
    for seed in range(3):
        result = model.chat(QUESTION, tools=[TOOL], tool_choice="required", n_predict=100, seed=seed)
        [*_, call] = result.tool_calls
        jsonschema.validate(call.arguments, WORDS)
        assert result.finish_reason == ("length" if result.stats.closed_at_limit else "tool_calls")


def test_free_calls_are_not_closed(model: Model) -> None:
    """An answer that may call a tool is cut off as before, since it is never required to call one."""
    opening = model.tokenize("<tool_call>", add_special=False)

    def begin_call(logits: np.ndarray, ids: list[int]) -> int:
        done = len(ids) - start[0]
        return opening[done] if done < len(opening) else int(np.flatnonzero(logits > -np.inf)[-1])

    start: list[int] = []

    def sampler(logits: np.ndarray, ids: list[int]) -> int:
        start[:] = start or [len(ids)]
        return begin_call(logits, ids)

    result = model.chat(QUESTION, tools=[TOOL], n_predict=60, sampler=sampler)
    assert not result.tool_calls
    assert not result.stats.closed_at_limit
    assert result.finish_reason == "length"


def test_invalid_constraints_are_errors_as_before(model: Model) -> None:
    with pytest.raises(ConstraintError):
        model.generate(PROMPT, schema={"not": {}}, n_predict=5)
