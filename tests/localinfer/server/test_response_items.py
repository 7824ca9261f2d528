"""Items of OpenAI's Responses API, as agents send and receive them."""

import json
from typing import Any

import pytest
from server_process import ServerProcess, wait_until

from localinfer.server.http.api_errors import APIError
from localinfer.server.openai.response_request import parse_messages, parse_response_request

URL = "/v1/responses"
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Add"}]}
ADD = {"type": "function", "name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}, "to": {"enum": ["x", "y"]}},
    "required": ["a", "to"]}}  # fmt: skip
CALL = '<tool_call>\\n{\\"name\\": \\"add\\", \\"arguments\\": {\\"a\\": 1}}\\n</tool_call>'
REQUEST: dict[str, Any] = {"input": [USER], "tools": [ADD], "max_output_tokens": 300, "seed": 3}
CALLED = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}', "status": "completed"}


def messages_of(*items: object, **fields: object) -> list[dict[str, Any]]:
    return parse_messages({"input": list(items), **fields})


def message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def stream(server: ServerProcess, fields: dict[str, Any]) -> list[Any]:
    return server.events(URL, fields | {"stream": True})


# --- input ---


def test_instructions_are_one_system_message() -> None:
    messages = messages_of(message("developer", "B"), message("system", "C"), USER, instructions="A")
    assert messages == [{"role": "system", "content": "A\nB\nC"}, {"role": "user", "content": "Add"}]


def test_turns_alternate() -> None:
    """Templates such as Gemma's refuse two messages of one role, and a system message that is not the first."""
    later = message("assistant", "5"), message("developer", "Be brief")
    messages = messages_of(message("user", "Context"), USER, *later)
    assert [each["role"] for each in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"] == "Context\nAdd"
    assert messages[2]["content"] == "<system-reminder>\nBe brief\n</system-reminder>"


def test_calls_of_an_answer_are_one_message() -> None:
    """The model has written the reasoning, the text and both calls as one answer."""
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    results = [{"type": "function_call_output", "call_id": id, "output": id} for id in ("c1", "c2")]
    items = [reasoning, message("assistant", "Well"), CALLED, CALLED | {"call_id": "c2"}]
    _, answer, *tools = messages_of(USER, *items, *results)
    assert (answer["role"], answer["content"], answer["reasoning_content"]) == ("assistant", "Well", "Hm")
    assert [call["id"] for call in answer["tool_calls"]] == ["c1", "c2"]
    assert answer["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert tools == [{"role": "tool", "tool_call_id": id, "name": "add", "content": id} for id in ("c1", "c2")]


def test_calls_of_later_answers_are_separate() -> None:
    result = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "2"}]}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "+ a"}
    messages = messages_of(USER, CALLED, result, custom, {**result, "type": "custom_tool_call_output", "call_id": "c2"})
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert messages[2]["content"] == "2"
    assert messages[3]["tool_calls"][0]["function"] == {"name": "patch", "arguments": {"input": "+ a"}}
    assert messages[4]["name"] == "patch"


def test_arguments_that_are_not_json_remain_a_text() -> None:
    [_, answer] = messages_of(USER, CALLED | {"arguments": "{a: 1"})
    assert answer["tool_calls"][0]["function"]["arguments"] == "{a: 1"


def test_reasoning_that_cannot_be_read_is_left_out() -> None:
    encrypted = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"}
    alone = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    assert messages_of(USER, encrypted, alone) == [{"role": "user", "content": "Add"}]
    with pytest.raises(APIError, match="has no message"):
        messages_of(encrypted)


def test_items_of_other_tools_are_skipped(agent: ServerProcess) -> None:
    items = [USER, {"type": "web_search_call", "id": "ws_1", "status": "completed"}]
    tools = [ADD, {"type": "web_search"}, {"type": "namespace", "name": "agents", "tools": [ADD]}]
    assert agent.post(URL, REQUEST | {"input": items, "tools": tools, "max_output_tokens": 2}).status == 200
    for skipped in ("input[1]: skipped, items of type web_search_call", "tools[2]: skipped, tools of type namespace"):
        assert wait_until(lambda skipped=skipped: any(skipped in line for line in agent.lines), 5)


@pytest.mark.parametrize("item", [
    {"type": "melody"}, {"type": "function_call", "name": 5, "arguments": "", "call_id": "x"}, 5, {"role": "user"},
    {"role": "user", "content": 5}, {"role": "user", "content": [{"type": "input_smell", "smell_url": "data:"}]},
    {"type": "function_call_output", "call_id": "x", "output": [{"type": "input_smell"}]},
])  # fmt: skip
def test_invalid_items(item: object) -> None:
    with pytest.raises(APIError) as raised:
        messages_of(USER, item)
    assert (raised.value.status, raised.value.error["param"]) == (400, "input")


def test_images_belong_to_the_turn_of_their_message() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    [turn] = messages_of(USER, {"role": "user", "content": [image]}, {"role": "user", "content": "Why?"})
    assert [part.get("text", part["type"]) for part in turn["content"]] == ["Add", "input_image", "Why?"]


def test_effort() -> None:
    for effort, thinks in ("low", True), ("none", False):
        prompt = parse_response_request({"input": "Hello", "reasoning": {"effort": effort}}).prompt
        assert prompt.template_kwargs == {"reasoning_effort": effort, "enable_thinking": thinks}


# --- output ---


def test_items_follow_each_other(agent: ServerProcess) -> None:
    grammar = f'root ::= "<think>" "the Hello" "</think>" "Well: " "{CALL}" "\\n" "{CALL}"'
    fields = REQUEST | {"grammar": grammar}
    whole = agent.post(URL, fields).body
    kinds = ["reasoning", "message", "function_call", "function_call"]
    assert [item["type"] for item in whole["output"]] == kinds
    reasoning, text, *calls = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "the Hello"}]
    assert text["content"][0]["text"] == "Well:"
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == 2 * [("add", {"a": 1})]
    assert calls[0]["call_id"] != calls[1]["call_id"]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    again = agent.post(URL, fields).body["output"]
    assert not {item["call_id"] for item in again[2:]} & {call["call_id"] for call in calls}, "ids are never repeated"

    events = stream(agent, fields)
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == [event["output_index"] for event in done] == [0, 1, 2, 3]
    assert [event["item"]["type"] for event in added] == kinds
    assert {event["item"]["status"] for event in added} == {"in_progress"}
    assert [event["item"] for event in done] == events[-1]["response"]["output"]
    for kind, text in ("reasoning_text", "the Hello"), ("output_text", "Well:"):
        deltas = [event for event in events if event["type"] == f"response.{kind}.delta"]
        assert "".join(event["delta"] for event in deltas) == text
        assert [event["text"] for event in events if event["type"] == f"response.{kind}.done"] == [text]
    for event in done[2:]:
        its = [each for each in events if each.get("output_index") == event["output_index"]]
        arguments = "".join(each["delta"] for each in its if each["type"].endswith("arguments.delta"))
        assert arguments == event["item"]["arguments"]
        assert its[-2]["type"] == "response.function_call_arguments.done"


def test_arguments_are_streamed(agent: ServerProcess) -> None:
    choice = {"type": "function", "name": "add"}
    events = stream(agent, REQUEST | {"tool_choice": choice, "parallel_tool_calls": False})
    parts = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert len(parts) > 5
    [item] = events[-1]["response"]["output"]
    assert "".join(part["delta"] for part in parts) == item["arguments"]
    assert json.loads(item["arguments"]).keys() == {"a", "to"}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_own_calls_are_not_read_again(agent: ServerProcess, is_streamed: bool) -> None:
    """The template would render the call on one line, the model has written it on several."""
    user = message("user", f"Add, streamed: {is_streamed}")
    fields = REQUEST | {"input": [user], "grammar": f'root ::= "{CALL}"'}
    answer = stream(agent, fields)[-1]["response"] if is_streamed else agent.post(URL, fields).body
    [call], usage = answer["output"], answer["usage"]
    items = [user, call, {"type": "function_call_output", "call_id": call["call_id"], "output": "2"}]
    end = REQUEST | {"max_output_tokens": 1}
    changed = [user, call | {"arguments": '{"a": 2}'}, items[-1]]
    other = agent.post(URL, end | {"input": changed}).body["usage"]["input_tokens_details"]
    assert other["cached_tokens"] < usage["total_tokens"] - 1
    again = agent.post(URL, end | {"input": items}).body["usage"]["input_tokens_details"]
    assert again["cached_tokens"] >= usage["total_tokens"] - 1
