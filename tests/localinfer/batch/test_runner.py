"""Responses equal those of the Python API."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tiny import tiny_llama

import localinfer
from localinfer import Model
from localinfer.batch.input_file import parse_requests
from localinfer.batch.job import Response
from localinfer.batch.runner import Runner
from localinfer.errors import ModelNotFoundError, NotEnoughMemoryError
from localinfer.server.openai import chat


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    file = tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")
    with Runner(lambda name: localinfer.load(name, threads=1, n_predict=5, ctx_size=256), str(file)) as opened:
        yield opened


@pytest.fixture
def model(runner: Runner) -> Model:
    [opened] = runner._model_cache.loaded.values()
    return opened


def responses_to(runner: Runner, *lines: object) -> list[Response]:
    """Return the responses in the order of the lines."""
    content = b"\n".join(json.dumps(line).encode() for line in lines)
    return sorted(runner.responses(parse_requests(content, "in", "jsonl")), key=lambda answer: answer.request.number)


def body_of(runner: Runner, line: object) -> dict[str, Any]:
    [actual] = responses_to(runner, line)
    assert actual.status == 200, actual.body
    return actual.body


def test_chat(runner: Runner, model: Model) -> None:
    body = body_of(runner, {"prompt": "Hello", "system": "S", "seed": 3})
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hello"}]
    run = model.stream_chat(messages, seed=3)
    expected = "".join(piece.text for piece in run)
    assert body["choices"][0]["message"]["content"] == expected
    assert body["model"] == "tiny"
    assert body["usage"]["completion_tokens"] == run.stats.generated_tokens <= 5


def test_raw(runner: Runner, model: Model) -> None:
    body = body_of(runner, {"prompt": "Hello", "raw": True, "seed": 3})
    run = model.stream("Hello", seed=3)
    assert body["choices"][0]["text"] == "".join(piece.text for piece in run)
    assert body["usage"]["completion_tokens"] == run.stats.generated_tokens


def test_embeddings(runner: Runner, model: Model) -> None:
    body = body_of(runner, {"url": "/v1/embeddings", "body": {"input": ["Hello", "and"]}})
    assert [each["embedding"] for each in body["data"]] == model.embed(["Hello", "and"]).tolist()


def test_responses(runner: Runner) -> None:
    body = body_of(runner, {"url": "/v1/responses", "body": {"input": "Hello", "max_output_tokens": 3}})
    assert body["object"] == "response"
    assert body["usage"]["output_tokens"] <= 3


def test_schema_per_line(runner: Runner) -> None:
    body = body_of(runner, {"prompt": "Hello", "schema": {"enum": ["a", "b"]}})
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
def test_failed_request_is_a_response(runner: Runner, line: object, status: int, code: str | None) -> None:
    bad, good = responses_to(runner, line, "Hello")
    assert (bad.status, bad.body["error"]["code"]) == (status, code)
    assert bad.has_failed
    assert not good.has_failed


def test_unexpected_exception(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(chat, "parse_chat_prompt", crash)
    [actual] = responses_to(runner, "Hello")
    assert (actual.status, actual.body["error"]["message"]) == (500, "unexpected ZeroDivisionError")


def test_temporary_failure_is_retried(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    read, failures = chat.parse_chat_prompt, [ZeroDivisionError()]

    def fail_first(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(*arguments)

    monkeypatch.setattr(chat, "parse_chat_prompt", fail_first)
    assert body_of(runner, "Hello")["object"] == "chat.completion"


def test_out_of_memory_ends_the_job(runner: Runner, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotEnoughMemoryError("full")

    monkeypatch.setattr(model, "stream_chat", refuse)
    with pytest.raises(NotEnoughMemoryError):
        responses_to(runner, "Hello", "and")


def test_closed_early(runner: Runner) -> None:
    """Closing the generator cancels the running requests, and the runner remains usable."""
    endless = b'{"prompt": "Hello", "max_tokens": 200, "ignore_eos": true}\n' * 3
    drawn = runner.responses(parse_requests(b"[]\n" + endless, "in", "jsonl"))
    assert next(drawn).status == 400
    drawn.close()  # type: ignore[attr-defined]
    assert not responses_to(runner, "Hello")[0].has_failed


def test_unknown_model() -> None:
    with pytest.raises(ModelNotFoundError):
        Runner(localinfer.load, "nonsense.gguf")
