"""OpenAI's Responses API."""

from typing import Any

import pytest
from server_process import ServerProcess

REQUEST = {"model": "tiny", "input": "Hello", "max_output_tokens": 12, "seed": 7}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "seed": 7}


def text_of(answer: dict[str, Any]) -> str:
    [message] = [item for item in answer["output"] if item["type"] == "message"]
    return str(message["content"][0]["text"])


def test_progress_and_timings(server: ServerProcess) -> None:
    request = {"input": "progress of a response " * 40, "max_output_tokens": 4, "stream": True}
    events = server.events("/v1/responses", request | {"return_progress": True, "timings_per_token": True})
    reports = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert reports[-1]["processed"] == reports[-1]["total"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert all(event["timings"]["prompt_n"] for event in deltas)
    assert events[-1]["timings"]["predicted_n"] == events[-1]["response"]["usage"]["output_tokens"]


def test_equals_chat_completion(server: ServerProcess) -> None:
    chat = server.post("/v1/chat/completions", CHAT).body
    answer = server.post("/v1/responses", REQUEST).body
    assert text_of(answer) == chat["choices"][0]["message"]["content"]
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in answer["output"]] == ["incomplete"]
    assert answer["usage"]["output_tokens"] == 12
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
    assert text_of(server.post("/v1/responses", REQUEST | {"input": items}).body) == text_of(answer)
    with_instructions = server.post("/v1/responses", REQUEST | {"instructions": "Be brief"}).body
    assert with_instructions["usage"]["input_tokens"] > answer["usage"]["input_tokens"]


def test_streamed(server: ServerProcess) -> None:
    whole = server.post("/v1/responses", REQUEST).body
    events = server.events("/v1/responses", REQUEST | {"stream": True})
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == text_of(whole)
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.incomplete"
    assert text_of(events[-1]["response"]) == text_of(whole)


def test_openai_client(server: ServerProcess) -> None:
    openai = pytest.importorskip("openai", reason="there is no package openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    request = {"model": "tiny", "input": "Hello", "max_output_tokens": 12, "extra_body": {"seed": 7}}
    whole = client.responses.create(**request)
    assert whole.output_text
    with client.responses.stream(**request) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text


VIOLATED = {  # no grammar can express that elements differ, so that no answer matches
    "type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 1}, "minItems": 2, "maxItems": 2,
    "uniqueItems": True,
}  # fmt: skip
FAILING = REQUEST | {"text": {"format": {"type": "json_schema", "name": "list", "schema": VIOLATED}}}
FAILING |= {"max_output_tokens": 100}


def test_failed_response(server: ServerProcess) -> None:
    """The error is part of the response, and what was generated before it stays there."""
    assert server.post("/v1/responses", FAILING).status == 422
    events = server.events("/v1/responses", FAILING | {"stream": True})
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert [event["type"] for event in events[-2:]] == ["response.output_item.done", "response.failed"]
    failed, created = events[-1]["response"], events[0]["response"]
    assert (failed["id"], failed["status"], failed["usage"]) == (created["id"], "failed", None)
    assert failed["error"]["code"] == "schema_violation"
    assert "does not match the schema" in failed["error"]["message"]
    [message] = failed["output"]
    assert message["status"] == "incomplete"
    assert message["content"][0]["text"].startswith("[")


def test_failed_response_in_the_openai_client(server: ServerProcess) -> None:
    openai = pytest.importorskip("openai", reason="there is no package openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    stream = client.responses.create(
        model="tiny", input="Hello", stream=True, text=FAILING["text"], extra_body={"seed": 7}
    )
    *_, last = stream
    assert last.type == "response.failed"
    assert (last.response.status, last.response.error.code) == ("failed", "schema_violation")
    with client.responses.stream(model="tiny", input="Hello", text=FAILING["text"]) as events:
        assert [event.type for event in events][-1] == "response.failed"


def test_error_before_the_response_is_a_status(server: ServerProcess) -> None:
    long = REQUEST | {"input": "too long " * 20_000, "stream": True}
    answer = server.post("/v1/responses", long)
    assert (answer.status, answer.body["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"previous_response_id": "x"}, "previous_response_id"),
        ({"tools": [{"type": 5}]}, "tools"),
        ({"max_output_tokens": -2}, "max_output_tokens"),
    ],
)
def test_invalid_fields(server: ServerProcess, changed: dict[str, Any], param: str) -> None:
    status, answer, _ = server.post("/v1/responses", REQUEST | changed)
    assert (status, answer["error"]["param"]) == (400, param)
