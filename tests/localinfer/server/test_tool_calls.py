"""Tool calls, from a model whose output a grammar constrains."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from server_process import ServerProcess
from tiny import CHATML, Field, tiny_llama

TEMPLATE = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}" + CHATML
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\\n{\\"name\\": \\"add\\", \\"arguments\\": {\\"a\\": 1}}\\n</tool_call>'
REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "Add"}], "tools": [TOOL],
                         "grammar": f'root ::= "Well: " "{CALL}"'}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("tools") / "tiny.gguf"
    with ServerProcess(tiny_llama(path, **{"tokenizer.chat_template": Field("STRING", TEMPLATE)})) as served:
        yield served


def test_openai(server: ServerProcess) -> None:
    choice = server.post("/v1/chat/completions", REQUEST).body["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]) == {"a": 1}
    assert "tool_call" not in choice["message"]["content"]
    chunks = [chunk["choices"][0] for chunk in server.events("/v1/chat/completions", REQUEST | {"stream": True})]
    [delta] = [chunk["delta"]["tool_calls"] for chunk in chunks if "tool_calls" in chunk["delta"]]
    assert delta == [{"index": 0} | call]
    assert chunks[-1]["finish_reason"] == "tool_calls"


def test_tool_result_message(server: ServerProcess) -> None:
    call = server.post("/v1/chat/completions", REQUEST).body["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "2"}
    messages = [*REQUEST["messages"], call, result]
    assert server.post("/v1/chat/completions", REQUEST | {"messages": messages}).status == 200


def test_openai_client(server: ServerProcess) -> None:
    openai = pytest.importorskip("openai", reason="there is no package openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    done = client.chat.completions.create(
        model="tiny", messages=REQUEST["messages"], tools=[TOOL], extra_body={"grammar": REQUEST["grammar"]}
    )
    assert done.choices[0].message.tool_calls[0].function.name == "add"


ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}, "to": {"enum": ["x", "y"]}},
    "required": ["a", "to"]}}}  # fmt: skip
SUB = {"type": "function", "function": {"name": "sub"}}
FREE = {"messages": REQUEST["messages"], "tools": [ADD, SUB], "max_tokens": 400, "temperature": 1.5}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_forced_calls_are_valid(server: ServerProcess, choice: object) -> None:
    """The weights of the model are random, so that only the grammar makes calls."""
    for seed in range(3):
        fields = FREE | {"tool_choice": choice, "parallel_tool_calls": False, "seed": seed}
        answer = server.post("/v1/chat/completions", fields).body["choices"][0]
        assert answer["finish_reason"] == "tool_calls"
        [call] = answer["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        if choice == "required" and call["function"]["name"] == "sub":
            assert arguments == {}
        else:
            assert call["function"]["name"] == "add"
            assert arguments.keys() == {"a", "to"}
            assert arguments["a"] in range(10)
            assert arguments["to"] in ("x", "y")


def answer_with_block(arguments: str, end: str = "") -> dict[str, Any]:
    text = f'I add.\n\n```json\n{{"name": "add", "arguments": {arguments}}}\n```{end}'
    return FREE | {"grammar": f"root ::= {json.dumps(text)}"}


def test_call_in_markdown(server: ServerProcess) -> None:
    """Small models write calls as code blocks behind other text."""
    arguments = '{"a": 1, "to": "x"}'
    choice = server.post("/v1/chat/completions", answer_with_block(arguments)).body["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("I add.", "tool_calls")
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "to": "x"}
    events = server.events("/v1/chat/completions", answer_with_block(arguments) | {"stream": True})
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I add."
    assert [delta["tool_calls"] for delta in deltas if "tool_calls" in delta] == [[{"index": 0} | call]]


@pytest.mark.parametrize(("arguments", "end", "more"), [
    ('{"a": 1, "to": "x"}', "\n\nSo it is called.", {}),
    ('{"a": 1, "to": "z"}', "", {}),
    ('{"a": 1, "to": "x"}', "", {"tool_choice": "none"}),
    ('{"a": 1, "to": "x"}', "", {"tools": [SUB]}),
    ('{"a": 1, "to": "x"}', "", {"tools": []}),
])  # fmt: skip
def test_examples_of_calls_in_markdown(server: ServerProcess, arguments: str, end: str, more: dict[str, Any]) -> None:
    fields = answer_with_block(arguments, end) | more
    choice = server.post("/v1/chat/completions", fields).body["choices"][0]
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"].startswith("I add.\n\n```json")
    assert choice["message"]["content"].endswith(f"```{end}")
    assert choice["finish_reason"] == "stop"


def test_streamed_arguments(server: ServerProcess) -> None:
    fields = FREE | {"tool_choice": {"type": "function", "function": {"name": "add"}}, "parallel_tool_calls": False}
    whole = server.post("/v1/chat/completions", fields | {"seed": 4}).body["choices"][0]["message"]["tool_calls"][0]
    events = server.events("/v1/chat/completions", fields | {"seed": 4, "stream": True})
    parts = [part for event in events for part in event["choices"][0]["delta"].get("tool_calls", [])]
    assert len(parts) > 5
    assert (parts[0]["id"], parts[0]["function"]["name"]) == (whole["id"], "add")
    assert all(part["index"] == 0 for part in parts)
    assert all("id" not in part for part in parts[1:])
    arguments = "".join(part["function"]["arguments"] for part in parts)
    assert json.loads(arguments) == json.loads(whole["function"]["arguments"])
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_text_that_may_be_a_call_is_held_back_with_comments(server: ServerProcess) -> None:
    """A client that gets nothing for long would give up."""
    for held in '{\\"name\\": \\"add\\", \\"x\\": \\"', "<tool_call>":
        body = REQUEST | {"grammar": f'root ::= "{held}" [a-z]{{200}}', "stream": True, "sse_ping_interval": 0.02}
        with contextlib.closing(server.connection()) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            lines = connection.getresponse().read().split(b"\n\n")
        contents = [at for at, line in enumerate(lines) if b'"content":"' in line]
        comments = [at for at, line in enumerate(lines) if line == b": still working"]
        assert len(contents) == 1, "the text is held back until the end of the answer"
        assert [at for at in comments if at < contents[0]]


def test_forced_call_in_other_apis(server: ServerProcess) -> None:
    choice = {"type": "function", "name": "sub"}
    fields = {"input": "Add", "tools": [ADD, SUB], "tool_choice": choice, "parallel_tool_calls": False}
    reply = server.post("/v1/responses", fields)
    [item] = [item for item in reply.body["output"] if item["type"] == "function_call"]
    assert (item["name"], item["arguments"]) == ("sub", "{}")
    assert (reply.body["tool_choice"], reply.body["parallel_tool_calls"]) == (choice, False)


def test_forced_call_excludes_a_grammar(server: ServerProcess) -> None:
    reply = server.post("/v1/chat/completions", REQUEST | {"tool_choice": "required"})
    assert reply.status == 400
    assert reply.body["error"]["message"].startswith("tool_choice: required excludes other constraints")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "log"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_forced_call_of_a_tool_whose_schema_cannot_be_compiled(
    server: ServerProcess, choice: object, stream: bool
) -> None:
    """Its arguments could not be constrained. The model may call the tool with `auto`."""
    parameters = {"type": "object", "properties": {"level": {"type": "whole number"}}}
    tools = [TOOL, {"type": "function", "function": {"name": "log", "parameters": parameters}}]
    request = {"messages": REQUEST["messages"], "tools": tools, "max_tokens": 1, "stream": stream}
    reply = server.post("/v1/chat/completions", request | {"tool_choice": choice})
    assert (reply.status, reply.body["error"]["code"]) == (400, "invalid_schema")
    assert reply.body["error"]["param"] == "tools[1].function.parameters"
    assert reply.body["error"]["message"].startswith("tools[1].function.parameters: ")
    assert "whole number" in reply.body["error"]["message"]
    assert server.post("/v1/chat/completions", request | {"stream": False}).status == 200


def test_tool_choice_none(server: ServerProcess) -> None:
    message = server.post("/v1/chat/completions", REQUEST | {"tool_choice": "none"}).body["choices"][0]["message"]
    assert "tool_calls" not in message


@pytest.mark.parametrize(("fields", "param", "message"), [
    ({"tool_choice": "banana"}, "tool_choice", "tool_choice: must be none, auto, required, {"),
    ({"tool_choice": 5}, "tool_choice", "tool_choice: must be none, auto, required, {"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "tool_choice: must be none, auto, required, {"),
    ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice",
     "tool_choice.function.name: there is no tool sub"),
    ({"tool_choice": "required", "tools": []}, "tool_choice", "tool_choice: required needs tools"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls", "parallel_tool_calls: must be true or false"),
    ({"tools": ["add"]}, "tools", "tools[0]: must be an object"),
    ({"tools": [TOOL, {"type": "function", "function": 5}]}, "tools", "tools[1].function: must be an object"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools", "tools[0].function.name: must be the name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]}, "tools",
     "tools[0].function.parameters: must be a JSON schema"),
    ({"tools": [{"type": 5}]}, "tools", "tools[0].type: must be a string"),
])  # fmt: skip
def test_invalid_tool_fields(server: ServerProcess, fields: dict[str, Any], param: str, message: str) -> None:
    for path, more in ("/v1/chat/completions", {}), ("/v1/responses", {"input": "Add"}):
        reply = server.post(path, REQUEST | more | fields)
        assert reply.status == 400
        assert reply.body["error"]["param"] == param
        assert reply.body["error"]["message"].startswith(message)


def test_unknown_types_of_tools_are_skipped(server: ServerProcess) -> None:
    tools = [{"type": "web_search"}, TOOL, {"type": "namespace", "name": "mcp", "tools": []}]
    choice = server.post("/v1/chat/completions", REQUEST | {"tools": tools}).body["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add"]
    reply = server.post("/v1/responses", {"input": "Add", "tools": tools[:1], "max_output_tokens": 2})
    assert reply.status == 200


def named(*names: str, **choice: object) -> dict[str, Any]:
    """Return a request with tools of these names, none of which has arguments."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return FREE | {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "seed": 1}


def called(server: ServerProcess, fields: dict[str, Any]) -> set[str]:
    """Return the names of the tools that are called with several seeds."""
    replies = [server.post("/v1/chat/completions", fields | {"seed": seed}).body["choices"][0] for seed in range(6)]
    return {call["function"]["name"] for reply in replies for call in reply["message"].get("tool_calls", [])}


@pytest.mark.parametrize("name", ["none", "auto", "required"])
def test_tools_with_the_name_of_a_mode(server: ServerProcess, name: str) -> None:
    assert called(server, named("other", name, type="function", function={"name": name})) == {name}


@pytest.mark.parametrize("mode", ["required", "auto"])
def test_allowed_tools(server: ServerProcess, mode: str) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("b", "c")]
    allowed = {"mode": mode, "tools": tools}
    names = called(server, named("a", "b", "c", type="allowed_tools", allowed_tools=allowed))
    assert names <= {"b", "c"}
    assert names or mode == "auto"  # the weights are random
    flat = [{"type": "function", "name": "c"}, {"type": "web_search"}]
    names = called(server, named("a", "b", "c", type="allowed_tools", mode=mode, tools=flat))
    assert names <= {"c"}
    assert names or mode == "auto"


@pytest.mark.parametrize(("choice", "message"), [
    ({"mode": "none", "tools": [{"type": "function", "name": "a"}]}, "tool_choice.mode: must be auto or required"),
    ({"mode": "auto", "tools": []}, "tool_choice.tools: must be a list of functions"),
    ({"mode": "auto", "tools": 5}, "tool_choice.tools: must be a list of functions"),
    ({"mode": "auto", "tools": [{"type": "function", "name": "z"}]}, "tool_choice.tools: there is no tool z"),
])  # fmt: skip
def test_invalid_allowed_tools(server: ServerProcess, choice: dict[str, Any], message: str) -> None:
    reply = server.post("/v1/chat/completions", named("a", type="allowed_tools", **choice))
    assert (reply.status, reply.body["error"]["param"]) == (400, "tool_choice")
    assert reply.body["error"]["message"].startswith(message)


WORDS = {"type": "object", "properties": {"words": {"type": "array", "items": {"type": "string"}, "minItems": 9}},
         "required": ["words"], "additionalProperties": False}  # fmt: skip
SAY = {"type": "function", "function": {"name": "say", "parameters": WORDS}}
LIMITED = FREE | {"tools": [SAY], "tool_choice": "required", "max_tokens": 130, "seed": 1}


def test_forced_call_at_the_limit(server: ServerProcess) -> None:
    """It is complete, and the finish reason says that it was shortened."""
    choice = server.post("/v1/chat/completions", LIMITED).body["choices"][0]
    assert choice["finish_reason"] == "length"
    [*_, call] = choice["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), WORDS)
    chunks = [chunk["choices"][0] for chunk in server.events("/v1/chat/completions", LIMITED | {"stream": True})]
    deltas = [delta for chunk in chunks for delta in chunk["delta"].get("tool_calls", ()) if delta["index"] == 0]
    streamed = "".join(delta["function"]["arguments"] for delta in deltas)
    assert json.loads(streamed) == json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
    assert chunks[-1]["finish_reason"] == "length"
    cut_off = server.post("/v1/chat/completions", LIMITED | {"close_at_limit": False}).body["choices"][0]
    assert cut_off["finish_reason"] == "length"
    assert "tool_calls" not in cut_off["message"]


def test_forced_call_at_the_limit_of_other_apis(server: ServerProcess) -> None:
    common = {"model": "tiny", "temperature": 1.5, "seed": 1, "messages": REQUEST["messages"]}
    tool = {"name": "say", "input_schema": WORDS}
    answer = server.post("/v1/messages", common | {"tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 130})
    assert answer.body["stop_reason"] == "max_tokens"
    jsonschema.validate(answer.body["content"][-1]["input"], WORDS)
    fields = common | {"input": "Add", "tools": [{"type": "function", **SAY["function"]}], "tool_choice": "required"}
    response = server.post("/v1/responses", fields | {"max_output_tokens": 130}).body
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    jsonschema.validate(json.loads(response["output"][-1]["arguments"]), WORDS)


def test_document_at_the_limit(server: ServerProcess) -> None:
    common = {"messages": REQUEST["messages"], "temperature": 1.5, "seed": 1, "max_tokens": 80}
    response_format = {"type": "json_schema", "json_schema": {"name": "words", "schema": WORDS}}
    choice = server.post("/v1/chat/completions", common | {"response_format": response_format}).body["choices"][0]
    assert choice["finish_reason"] == "length"
    jsonschema.validate(json.loads(choice["message"]["content"]), WORDS)
    options = {"num_predict": 80, "temperature": 1.5, "seed": 1}
    fields = {"model": "tiny", "messages": REQUEST["messages"], "format": WORDS, "options": options, "stream": False}
    done = server.post("/api/chat", fields).body
    assert done["done_reason"] == "length"
    jsonschema.validate(json.loads(done["message"]["content"]), WORDS)
    text = server.post("/completion", {"prompt": "Add", "json_schema": WORDS, "n_predict": 80, "seed": 1}).body
    assert text["stop_type"] == "limit"
    jsonschema.validate(json.loads(text["content"]), WORDS)
    cut_off = server.post("/completion", {
        "prompt": "Add", "json_schema": WORDS, "n_predict": 80, "seed": 1, "close_at_limit": False}).body
    with pytest.raises(ValueError, match=r"."):
        json.loads(cut_off["content"])
