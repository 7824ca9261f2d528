"""Answers that violate what no mask enforces: further attempts, and runs that never start."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_llama

import localinfer
from localinfer import ContextOverflowError, IncompleteOutputError, InvalidOutputError, LocalInferError, Model
from localinfer.generation.result import GenerationStream
from localinfer.generation.structured.constraint import Constraint

MESSAGES = [{"role": "user", "content": "Hello"}]
TEMPLATE = "{{ messages[0].content }}"
pytestmark = pytest.mark.filterwarnings("ignore:.*checked only at the end")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path: Path = tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with localinfer.load(path, threads=2, ctx_size=256) as loaded:
        yield loaded


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets an element for each attempt."""
    numbers: list[int] = []
    restart = Constraint.restart

    def counted(self: Constraint) -> None:
        numbers.append(self.n_discarded)
        restart(self)

    monkeypatch.setattr(Constraint, "restart", counted)
    return numbers


def pair(*second: str, excluded: str = "b") -> dict[str, Any]:
    """Return a schema of an array of "kept" and of one of these words, which has not the excluded first letter."""
    items = [{"enum": ["kept"]}, {"enum": list(second), "pattern": f"^(?!{excluded})"}]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": 2}


def text_and_error(stream: GenerationStream) -> tuple[str, LocalInferError | None]:
    """Return the text of a run, and the error after its last piece."""
    text = ""
    try:
        for piece in stream:
            text += piece.text
    except LocalInferError as error:
        return text, error
    return text, None


def is_idle(model: Model) -> bool:
    """Return whether the worker of the last constraint waits for the next one."""
    return len(model._resources.constraint_vocabulary().workers._idle) == 1


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_invalid_answers_are_repaired(model: Model, restarts: list[int], temp: float) -> None:
    outcomes = []
    for excluded, seed in product("abc", range(4)):
        restarts.clear()
        try:
            result = model.generate("Hello", schema=pair("bad", "c", "a", excluded=excluded), seed=seed, temp=temp)
        except InvalidOutputError:
            outcomes.append("invalid")
            continue
        outcomes.append("repaired" if len(restarts) > 1 else "valid")
        assert json.loads(result.text)[0] == "kept"
        assert json.loads(result.text)[1] in {"bad", "c", "a"} - {excluded}
        assert not json.loads(result.text)[1].startswith(excluded)
        assert result.text == model.detokenize(result.tokens)
        assert result.stats.generated_tokens == len(result.tokens)
        assert result.finish_reason == "stop"
    assert outcomes.count("repaired") > 1
    assert outcomes.count("valid") > 1


def test_repair_repeats_with_its_seed(model: Model) -> None:
    texts = {model.generate("Hello", schema=pair("bad", "b", "c", "a"), seed=5).text for _ in range(3)}
    assert len(texts) == 1


def test_answer_that_stays_invalid(model: Model, restarts: list[int]) -> None:
    text, error = text_and_error(model.stream("Hello", schema=pair("bad"), seed=1))
    assert json.loads(text) == ["kept", "bad"]
    assert isinstance(error, InvalidOutputError)
    assert str(error).endswith("#/1: 'bad' does not match '^(?!b)' (schema: #/prefixItems/1/pattern)")
    assert len(restarts) == 4
    assert is_idle(model)


def test_answer_that_is_cut_off_is_not_repaired(model: Model, restarts: list[int]) -> None:
    text, error = text_and_error(model.stream("Hello", schema=pair("bad"), n_predict=3))
    assert text
    assert isinstance(error, IncompleteOutputError)
    assert len(restarts) == 1


def test_repair_keeps_the_given_prefix(model: Model) -> None:
    prefix = model.tokenize('["ke', add_special=False)
    for seed in range(6):
        result = model.chat(MESSAGES, schema=pair("bad", "a"), prefix_ids=prefix, seed=seed, chat_template=TEMPLATE)
        assert json.loads(result.text) == ["kept", "a"]
        assert result.tokens[: len(prefix)] == prefix


def test_masked_schemas_are_streamed(model: Model) -> None:
    stream = model.stream("Hello", schema={"enum": ["one", "two"]})
    next(stream)
    assert stream.stats.finish_reason == "interrupted"
    stream.close()
    assert is_idle(model)


def test_run_that_is_never_started_releases_its_worker(model: Model) -> None:
    stream = model.stream("Hello", regex="a")
    assert not is_idle(model)
    stream.close()
    stream.close()
    assert is_idle(model)
    chat = model.stream_chat(MESSAGES, regex="a", chat_template=TEMPLATE)
    assert not is_idle(model)
    chat.close()
    assert is_idle(model)


def test_run_that_cannot_start_releases_its_worker(model: Model) -> None:
    with pytest.raises(ContextOverflowError):
        model.stream([1] * 500, regex="a")
    assert is_idle(model)
