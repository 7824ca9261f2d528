"""Errors of constraints name the field of the request."""

from typing import Any

import pytest
from server_process import ServerProcess

MESSAGES = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 300}
CHAT, COMPLETIONS, RESPONSES, OLLAMA = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/api/chat"
BAD = {"type": "text"}
ENDLESS = "a{99999999}"


def response_format(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def tools(parameters: object, *before: object) -> dict[str, Any]:
    function = {"name": "f", "parameters": parameters}
    return {"tools": [*before, {"type": "function", "function": function}], "tool_choice": "required"}


# More than llguidance's stack holds
CHAIN = {"$defs": {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}, {}]} for n in range(5000)} | {"5000": {}}}
DEEP = {"properties": {"a": {"$ref": "#/$defs/0"}}, **CHAIN}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields", "param"), [
    (CHAT, MESSAGES | response_format(BAD), "response_format.json_schema.schema"),
    (CHAT, MESSAGES | response_format(False), "response_format.json_schema.schema"),
    (CHAT, MESSAGES | response_format(5), "response_format.json_schema.schema"),
    (CHAT, MESSAGES | response_format(""), "response_format.json_schema.schema"),
    (CHAT, MESSAGES | response_format(DEEP), "response_format.json_schema.schema"),
    (CHAT, MESSAGES | {"response_format": {"type": "json_object", "schema": BAD}}, "response_format.schema"),
    (CHAT, MESSAGES | {"json_schema": BAD}, "json_schema"),
    (CHAT, MESSAGES | {"grammar": "root ::= ("}, "grammar"),
    (CHAT, MESSAGES | {"regex": "("}, "regex"),
    (CHAT, MESSAGES | {"regex": ENDLESS}, "regex"),  # fails at the first token
    (CHAT, MESSAGES | {"regex": "a", "grammar": 'root ::= "a"'}, "grammar"),
    (CHAT, MESSAGES | tools(DEEP), "tools[0].function.parameters"),
    (CHAT, MESSAGES | tools(DEEP, {"type": "web_search"}), "tools[1].function.parameters"),
    (COMPLETIONS, {"prompt": "Hello", "grammar": "root ::= ("}, "grammar"),
    ("/completion", {"prompt": "Hello", "json_schema": BAD}, "json_schema"),
    (RESPONSES, {"input": "Hello", "text": {"format": {"type": "json_schema", "schema": BAD}}}, "text.format.schema"),
    (RESPONSES, {"input": "Hello", "tool_choice": "required", "tools": [
        {"type": "function", "name": "f", "parameters": DEEP}]}, "tools[0].parameters"),
    (OLLAMA, MESSAGES | {"format": BAD}, "format"),
])  # fmt: skip
def test_errors_name_the_field(
    server: ServerProcess, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    reply = server.post(path, fields | {"stream": stream})
    if path == OLLAMA:
        assert reply.status == 400
        assert reply.body["error"].startswith(f"{param}: ")
        return
    if reply.status == 200:  # the first event was already sent
        assert (stream, fields["regex"]) == (True, ENDLESS)
        assert f'"param":"{param}"'.encode() in reply.body
        return
    error = reply.body["error"]
    assert (reply.status, error["param"]) == (400, param)
    assert error["message"].startswith(param)
    assert "--" not in error["message"]


def test_schema_true(server: ServerProcess) -> None:
    reply = server.post(CHAT, MESSAGES | response_format(True) | {"max_tokens": 5})
    assert reply.status == 200


def test_schema_false(server: ServerProcess) -> None:
    error = server.post(CHAT, MESSAGES | response_format(False)).body["error"]
    assert error["message"] == "response_format.json_schema.schema: #: no document matches the schema false"


def test_keywords_that_are_not_masked_are_logged(server: ServerProcess) -> None:
    schema = {"type": "string", "pattern": "^(?!a)", "maxLength": 3}
    server.post(CHAT, MESSAGES | response_format({"properties": {"unusual": schema}}) | {"max_tokens": 2})
    assert any("checked only at the end: #/properties/unusual/pattern" in line for line in server.lines)
