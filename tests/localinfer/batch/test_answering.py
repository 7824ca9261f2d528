"""Answers of a model, the same as it gives in Python."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tiny import tiny_llama

import localinfer
from localinfer import Model
from localinfer.batch.answering import Answering
from localinfer.batch.job import Answer
from localinfer.batch.reading import requests_of
from localinfer.errors import ModelNotFound, NotEnoughMemory
from localinfer.server.openai import chat


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answering]:
    file = tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")
    with Answering(lambda name: localinfer.load(name, threads=1, n_predict=5, ctx_size=256), str(file)) as opened:
        yield opened


@pytest.fixture
def model(answering: Answering) -> Model:
    [opened] = answering._shelf.loaded.values()
    return opened


def answers(answering: Answering, *lines: object) -> list[Answer]:
    """In the order of the lines."""
    content = b"\n".join(json.dumps(line).encode() for line in lines)
    return sorted(answering.each(requests_of(content, "in", "jsonl")), key=lambda answer: answer.request.number)


def answer(answering: Answering, line: object) -> dict[str, Any]:
    [found] = answers(answering, line)
    assert found.status == 200, found.body
    return found.body


def test_chat(answering: Answering, model: Model) -> None:
    body = answer(answering, {"prompt": "Hello", "system": "S", "seed": 3})
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hello"}]
    expected = "".join(piece.text for piece in model.chat(messages, seed=3))
    assert body["choices"][0]["message"]["content"] == expected
    assert body["model"] == "tiny"
    assert body["usage"]["completion_tokens"] == model.stats.generated_tokens <= 5


def test_raw(answering: Answering, model: Model) -> None:
    body = answer(answering, {"prompt": "Hello", "raw": True, "seed": 3})
    assert body["choices"][0]["text"] == "".join(piece.text for piece in model.generate("Hello", seed=3))
    assert body["usage"]["completion_tokens"] == model.stats.generated_tokens


def test_vectors(answering: Answering, model: Model) -> None:
    body = answer(answering, {"url": "/v1/embeddings", "body": {"input": ["Hello", "and"]}})
    assert [each["embedding"] for each in body["data"]] == model.embed(["Hello", "and"]).tolist()


def test_responses(answering: Answering) -> None:
    body = answer(answering, {"url": "/v1/responses", "body": {"input": "Hello", "max_output_tokens": 3}})
    assert body["object"] == "response"
    assert body["usage"]["output_tokens"] <= 3


def test_a_schema_a_line(answering: Answering) -> None:
    body = answer(answering, {"prompt": "Hello", "schema": {"enum": ["a", "b"]}})
    assert json.loads(body["choices"][0]["message"]["content"]) in ("a", "b")


@pytest.mark.parametrize(
    ("line", "status", "code"),
    [
        ([1], 400, None),
        ({"prompt": "a", "temperature": "hot"}, 400, None),
        ({"prompt": "a", "schema": {"type": "nonsense"}}, 400, "invalid_schema"),
        ({"prompt": "Hello " * 300}, 400, "context_length_exceeded"),
        ({"messages": []}, 400, None),
        ({"messages": [{"role": "user", "content": 5}]}, 400, None),
    ],
)
def test_what_fails_is_an_answer(answering: Answering, line: object, status: int, code: str | None) -> None:
    bad, good = answers(answering, line, "Hello")
    assert (bad.status, bad.body["error"]["code"]) == (status, code)
    assert bad.failed
    assert not good.failed


def test_what_nobody_has_foreseen(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(chat, "talk_of", crash)
    [found] = answers(answering, "Hello")
    assert (found.status, found.body["error"]["message"]) == (500, "unexpected ZeroDivisionError")


def test_what_fails_in_passing_is_tried_once_more(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    read, failures = chat.talk_of, [ZeroDivisionError()]

    def fail_first(*words: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(*words)

    monkeypatch.setattr(chat, "talk_of", fail_first)
    assert answer(answering, "Hello")["object"] == "chat.completion"


def test_too_little_memory_ends_it(answering: Answering, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotEnoughMemory("full")

    monkeypatch.setattr(model, "chat", refuse)
    with pytest.raises(NotEnoughMemory):
        answers(answering, "Hello", "and")


def test_left_in_the_midst(answering: Answering) -> None:
    """Whoever wants no more of them waits for one token, and can ask again."""
    endless = b'{"prompt": "Hello", "max_tokens": 200, "ignore_eos": true}\n' * 3
    drawn = answering.each(requests_of(b"[]\n" + endless, "in", "jsonl"))
    assert next(drawn).status == 400
    drawn.close()  # type: ignore[attr-defined]
    assert not answers(answering, "Hello")[0].failed


def test_no_such_model() -> None:
    with pytest.raises(ModelNotFound):
        Answering(localinfer.load, "nonsense.gguf")
