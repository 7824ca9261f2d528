"""Errors of Anthropic's Messages API."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from server_process import Response, ServerProcess
from tiny import tiny_llama

URL, COUNT = "/v1/messages", "/v1/messages/count_tokens"
VERSION = {"anthropic_version": "2023-06-01"}
REQUEST: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "messages": [{"role": "user", "content": "Hello"}]}
ADD = {"name": "add", "input_schema": {"type": "object"}}
CALLED = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}


def problem_of(reply: Response) -> tuple[int, str, str]:
    assert reply.body["type"] == "error"
    return reply.status, reply.body["error"]["type"], reply.body["error"]["message"]


@pytest.mark.parametrize(("changed", "message"), [
    ({"messages": []}, "messages: must be a list of at least one message"),
    ({"messages": None}, "messages: must be"),
    ({"messages": ["Hello"]}, "messages[0]: must be an object"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: must be user, assistant or system"),
    ({"messages": [{"role": "user"}]}, "messages[0].content: must be a string or a list"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]: must be a content block"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
     "messages[0].content[0].source: must have the type base64 with data, or url"),
    ({"messages": [{"role": "user", "content": [RESULT | {"content": [{"type": "image", "source": {}}]}]}]},
     "messages[0].content[0].content[0].source: must have the type base64 with data, or url"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
     "messages[0].content[0]: document input is not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]},
     "messages[0].content[0]: content blocks of type video are not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text: must be a string"),
    ({"messages": [{"role": "assistant", "content": [CALLED | {"input": "x"}]}]},
     "messages[0].content[0].input: must be an object"),
    ({"system": 5}, "system: must be a string or a list"),
    ({"max_tokens": 0}, "max_tokens: must be an integer from 1"),
    ({"max_tokens": "many"}, "max_tokens: must be an integer"),
    ({"temperature": -1}, "temperature: must"),
    ({"stop_sequences": "x"}, "stop_sequences: must be a list"),
    ({"stop_sequences": [""]}, "stop_sequences: must be non-empty"),
    ({"thinking": {"type": "hard"}}, "thinking.type: must be"),
    ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens: must be"),
    ({"output_config": {"effort": "none"}}, "output_config.effort: must be one of"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format: must be of type json_schema"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema: must be a JSON schema"),
    ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema: must be a JSON schema"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name: must be the name"),
    ({"tools": [ADD], "tool_choice": "any"}, "tool_choice: must be an object"),
    ({"tools": [ADD], "tool_choice": {"type": "required"}}, "tool_choice.type: must be auto, any, tool or none"),
    ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice.name: there is no tool sub"),
    ({"tool_choice": {"type": "any"}}, "tool_choice: any needs tools"),
    ({"tools": [ADD], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
     "tool_choice.disable_parallel_tool_use: must be true or false"),
    ({"stream": "yes"}, "stream: must be true or false"),
])  # fmt: skip
def test_invalid_fields(server: ServerProcess, changed: dict[str, Any], message: str) -> None:
    for path in URL, COUNT:
        status, kind, actual = problem_of(server.post(path, REQUEST | changed))
        assert (status, kind) == (400, "invalid_request_error")
        assert actual.startswith(message)


def test_other_errors(tiny: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf")
    with ServerProcess(tiny, other, "--api-key", "secret") as server:
        keys = {"x_api_key": "secret"}
        assert problem_of(server.post(URL, REQUEST))[:2] == (401, "authentication_error")
        assert problem_of(server.get("/v1/models", **VERSION))[:2] == (401, "authentication_error")
        assert server.post(URL, REQUEST, **keys).status == 200
        assert server.post(URL, REQUEST, authorization="Bearer secret").status == 200
        assert problem_of(server.post(URL, REQUEST | {"model": "none"}, **keys))[:2] == (404, "not_found_error")
        assert problem_of(server.post(f"{URL}/batches", {}, **keys))[:2] == (404, "not_found_error")
        assert problem_of(server.get(URL, **keys))[:2] == (405, "invalid_request_error")
        assert problem_of(server.post(URL, REQUEST, host="evil.example", **keys))[:2] == (403, "permission_error")
        too_large = server.post(URL, b'"' + b"a" * (33 << 20) + b'"', **keys)
        assert problem_of(too_large)[:2] == (413, "request_too_large")
        assert problem_of(server.post(URL, b"{", **keys))[:2] == (400, "invalid_request_error")


def test_error_within_a_stream() -> None:
    from localinfer.server.anthropic.routes import EVENTS
    from localinfer.server.http.api_errors import APIError

    lines = EVENTS.write(EVENTS.format_error(APIError(500, "boom"))).decode().splitlines()
    assert lines[0] == "event: error"
    error = {"type": "api_error", "message": "boom"}
    assert json.loads(lines[1].removeprefix("data: ")) == {"type": "error", "error": error}


def test_overload(tiny: Path) -> None:
    endless = REQUEST | {"max_tokens": 16000, "ignore_eos": True, "stream": True}
    arguments = ["--queue", "0", "--parallel", "1"]
    with ServerProcess(tiny, *arguments) as server, contextlib.closing(server.open(URL, endless)) as running:
        running.readline()
        reply = server.post(URL, REQUEST)
        assert problem_of(reply)[:2] == (529, "overloaded_error")
        assert reply.headers["retry-after"] == "1"
