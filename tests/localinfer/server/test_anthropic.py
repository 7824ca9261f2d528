"""Anthropic's Messages API over HTTP."""

import json
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, wait_until
from tiny import CHATML, Field, tiny_llama

URL, COUNT = "/v1/messages", "/v1/messages/count_tokens"
VERSION = {"anthropic_version": "2023-06-01"}
USER = {"role": "user", "content": "Hello"}
REQUEST: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "messages": [USER], "seed": 7}
ADD = {"name": "add", "input_schema": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}, "to": {"enum": ["x", "y"]}},
    "required": ["a", "to"]}}  # fmt: skip
SUB = {"name": "sub", "description": "Subtract", "input_schema": {"type": "object"}}
CALL = '<tool_call>\\n{\\"name\\": \\"add\\", \\"arguments\\": {\\"a\\": 1}}\\n</tool_call>'
CALLED = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "to": "x"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}


def stream(server: ServerProcess, fields: dict[str, Any]) -> list[Any]:
    return server.events(URL, fields | {"stream": True})


def texts_of(events: list[Any], kind: str) -> str:
    deltas = (event["delta"] for event in events if event["type"] == "content_block_delta")
    return "".join(delta[kind] for delta in deltas if kind in delta)


def prompt_of(server: ServerProcess, fields: dict[str, Any]) -> str:
    """Return the prompt of a request. Its last line begins the answer."""
    from localinfer.server.anthropic.request import parse_message_request

    prompt = parse_message_request(REQUEST | fields).prompt
    chat = {"messages": prompt.messages, "tools": prompt.tools.tools, "chat_template_kwargs": prompt.template_kwargs}
    return str(server.post("/apply-template", chat).body["prompt"])


# --- text ---


def test_equals_chat_completion(server: ServerProcess) -> None:
    chat = server.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 12, "seed": 7}).body
    answer = server.post(URL, REQUEST).body
    assert answer["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "tiny")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("max_tokens", None)
    assert answer["id"].startswith("msg_")
    usage = answer["usage"]
    assert usage["output_tokens"] == 12
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]
    assert "timings" not in answer


def test_streamed(server: ServerProcess) -> None:
    whole = server.post(URL, REQUEST).body
    events = stream(server, REQUEST)
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["role"]) == ([], None, "assistant")
    assert start["usage"]["input_tokens"] + start["usage"]["cache_read_input_tokens"] > 0
    assert events[1]["content_block"] == {"type": "text", "text": ""}
    assert {event["index"] for event in events if "index" in event} == {0}
    assert texts_of(events, "text") == whole["content"][0]["text"]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"].keys() == whole["usage"].keys()
    assert sum(events[-2]["usage"].values()) == sum(whole["usage"].values())


def test_events_are_named(server: ServerProcess) -> None:
    with server.open(URL, REQUEST | {"stream": True}) as answer:
        lines = answer.read().decode().splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    types = [json.loads(line.removeprefix("data: "))["type"] for line in lines if line.startswith("data: ")]
    assert names == types
    assert "[DONE]" not in lines[-2]


def test_prefix_cache_is_reported(server: ServerProcess) -> None:
    """A second turn reads only what is new. Marked prefixes count as written to the cache."""
    first = REQUEST | {"messages": [{"role": "user", "content": "Hello the " * 40}]}
    before = server.post(URL, first).body
    turn = [*first["messages"], {"role": "assistant", "content": before["content"]}, USER]
    usage = server.post(URL, REQUEST | {"messages": turn}).body["usage"]
    assert usage["cache_read_input_tokens"] >= before["usage"]["input_tokens"]
    assert 0 < usage["input_tokens"] < usage["cache_read_input_tokens"] / 2
    assert usage["cache_creation_input_tokens"] == 0
    marked = {"type": "text", "text": "the Hello " * 40, "cache_control": {"type": "ephemeral"}}
    usage = server.post(URL, REQUEST | {"messages": [{"role": "user", "content": [marked]}]}).body["usage"]
    assert usage["cache_creation_input_tokens"] > 40
    assert usage["input_tokens"] == 0


def test_stop_reasons(server: ServerProcess) -> None:
    text = server.post(URL, REQUEST).body["content"][0]["text"]
    stop = text[3:5]
    stopped = server.post(URL, REQUEST | {"stop_sequences": ["never in there", stop]}).body
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
    assert stopped["content"][0]["text"] == text[: text.index(stop)]
    ended = server.post(URL, REQUEST | {"grammar": 'root ::= "Hello"'}).body
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)
    assert stream(server, REQUEST | {"stop_sequences": [stop]})[-2]["delta"]["stop_sequence"] == stop


def test_full_context(tiny: Path) -> None:
    with ServerProcess(tiny, "--ctx-size", "64") as server:
        answer = server.post(URL, REQUEST | {"max_tokens": 500, "ignore_eos": True}).body
        assert answer["stop_reason"] == "model_context_window_exceeded"
        refused = server.post(URL, REQUEST | {"messages": [{"role": "user", "content": "Hello the " * 40}]})
        assert refused.status == 400
        assert refused.body["error"]["message"].startswith("prompt is too long: ")
        assert " tokens > 64 maximum" in refused.body["error"]["message"]


def test_last_message_of_the_assistant_is_continued(server: ServerProcess) -> None:
    request = REQUEST | {"messages": [USER, {"role": "assistant", "content": "Hello the"}]}
    counted = server.post(COUNT, request).body["input_tokens"]
    answered = server.post(COUNT, REQUEST | {"messages": [*request["messages"], USER]}).body["input_tokens"]
    assert counted < answered - 5  # no generation prompt
    assert server.post(URL, request).body["content"][0]["type"] == "text"


def test_structured_output(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    answer = server.post(URL, REQUEST | {"output_config": config, "max_tokens": 100}).body
    assert json.loads(answer["content"][0]["text"])["n"] in (1, 2)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_disconnect_frees_the_slot(server: ServerProcess, is_streamed: bool) -> None:
    def is_idle() -> bool:
        return not server.get("/slots").body[0]["is_processing"]

    connection = server.connection()
    fields = REQUEST | {"max_tokens": 16000, "ignore_eos": True, "stream": is_streamed}
    connection.request("POST", URL, json.dumps(fields))
    assert wait_until(lambda: not is_idle(), 5)
    connection.close()
    assert wait_until(is_idle, 1)


# --- tools ---


def test_tool_use(agent: ServerProcess) -> None:
    fields = REQUEST | {"tools": [ADD], "max_tokens": 200, "grammar": f'root ::= "Well: " "{CALL}"'}
    answer = agent.post(URL, fields).body
    text, call = answer["content"]
    assert text == {"type": "text", "text": "Well:"}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "add", {"a": 1})
    assert answer["stop_reason"] == "tool_use"
    again = agent.post(URL, fields).body["content"][1]
    assert again["id"] != call["id"], "ids are unique among conversations"
    events = stream(agent, fields)
    assert json.loads(texts_of(events, "partial_json")) == {"a": 1}
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"]["type"]) for event in starts] == [(0, "text"), (1, "tool_use")]
    assert starts[1]["content_block"]["input"] == {}
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1]


def test_own_calls_are_not_read_again(agent: ServerProcess) -> None:
    """The template would render the call on one line, the model has written it on several."""
    fields = REQUEST | {"tools": [ADD], "max_tokens": 200, "grammar": f'root ::= "{CALL}"'}
    for more in {}, {"stream": True}:
        messages = [{"role": "user", "content": f"Add {more}"}]
        request = fields | {"messages": messages}
        if more:
            events = stream(agent, request)
            block = next(event["content_block"] for event in events if event["type"] == "content_block_start")
            content, usage = [block | {"input": {"a": 1}}], events[-2]["usage"]
        else:
            answer = agent.post(URL, request).body
            content, usage = answer["content"], answer["usage"]
        result = {"type": "tool_result", "tool_use_id": content[0]["id"], "content": "2"}
        turn = [*messages, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        n_before = usage["input_tokens"] + usage["cache_read_input_tokens"]
        changed = [content[0] | {"input": {"a": 2}}]
        other_turn = [*messages, {"role": "assistant", "content": changed}, turn[-1]]
        other = agent.post(URL, fields | {"messages": other_turn, "max_tokens": 1}).body["usage"]
        assert other["cache_read_input_tokens"] < n_before + usage["output_tokens"] - 1
        again = agent.post(URL, fields | {"messages": turn, "max_tokens": 1}).body["usage"]
        assert again["cache_read_input_tokens"] >= n_before + usage["output_tokens"] - 1


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_forced_calls(agent: ServerProcess, choice: dict[str, Any]) -> None:
    """The weights of the model are random, so that only the grammar makes calls."""
    for seed in range(3):
        fields = REQUEST | {"tools": [ADD, SUB], "max_tokens": 400, "seed": seed, "temperature": 1.5,
                            "tool_choice": choice | {"disable_parallel_tool_use": True}}  # fmt: skip
        answer = agent.post(URL, fields).body
        assert answer["stop_reason"] == "tool_use"
        [call] = answer["content"]
        assert call["name"] == "add" or choice["type"] == "any"
        if call["name"] == "add":
            assert call["input"].keys() == {"a", "to"}
            assert call["input"]["to"] in ("x", "y")


def test_arguments_are_streamed(agent: ServerProcess) -> None:
    choice = {"type": "tool", "name": "add", "disable_parallel_tool_use": True}
    events = stream(agent, REQUEST | {"tools": [ADD], "tool_choice": choice, "max_tokens": 400, "seed": 4})
    parts = [event for event in events if event.get("delta", {}).get("type") == "input_json_delta"]
    assert len(parts) > 5
    assert json.loads(texts_of(events, "partial_json")).keys() == {"a", "to"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_several_calls(agent: ServerProcess) -> None:
    fields = REQUEST | {"tools": [ADD], "max_tokens": 400, "grammar": f'root ::= "{CALL}" "\\n" "{CALL}"'}
    calls = agent.post(URL, fields).body["content"]
    assert [call["name"] for call in calls] == ["add", "add"]
    assert calls[0]["id"] != calls[1]["id"]


def test_tool_choice_none(agent: ServerProcess) -> None:
    assert '"add"' in prompt_of(agent, {"tools": [ADD]})
    assert '"add"' not in prompt_of(agent, {"tools": [ADD], "tool_choice": {"type": "none"}})


def test_tools_of_other_types_are_skipped(agent: ServerProcess) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}, ADD | {"type": "custom"}]
    with pytest.warns(UserWarning, match="web_search_20250305"):
        prompt = prompt_of(agent, {"tools": tools})
    assert "web_search" not in prompt
    assert '"parameters"' in prompt
    assert agent.post(URL, REQUEST | {"tools": tools}).status == 200
    assert wait_until(lambda: any("web_search_20250305" in line for line in agent.lines), 5)


def test_tool_results(agent: ServerProcess) -> None:
    """Results follow the call as messages of their own, before the user's text."""
    blocks = [{"type": "text", "text": "And now?"}, RESULT]
    messages = [USER, {"role": "assistant", "content": [CALLED]}, {"role": "user", "content": blocks}]
    prompt = prompt_of(agent, {"messages": messages, "tools": [ADD]})
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "to": "x"}}</tool_call><|im_end|>\n'
    rest = "<|im_start|>tool(add)\n2<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.endswith(call + rest)
    assert agent.post(URL, REQUEST | {"messages": messages, "tools": [ADD]}).status == 200


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "2"}, {"type": "text", "text": "3"}]}, "2\n3"),
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({"content": []}, ""),
        ({}, ""),
        ({"content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}]}, "D"),
        ({"content": [{"type": "search_result", "title": "T", "source": "S",
                       "content": [{"type": "text", "text": "C"}]}]}, "T\nS\nC"),
    ],
)  # fmt: skip
def test_contents_of_results(agent: ServerProcess, result: dict[str, Any], text: str) -> None:
    block = {"type": "tool_result", "tool_use_id": "toolu_1"} | result
    messages = [USER, {"role": "assistant", "content": [CALLED]}, {"role": "user", "content": [block]}]
    prompt = prompt_of(agent, {"messages": messages})
    assert prompt.endswith(f"<|im_start|>tool(add)\n{text}<|im_end|>\n<|im_start|>assistant\n")


# --- thinking ---

REASONED = 'root ::= "<think>" "the Hello" "</think>" "Hello"'


def test_thinking_blocks(agent: ServerProcess) -> None:
    fields = REQUEST | {"grammar": REASONED, "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 200}
    thinking, text = agent.post(URL, fields).body["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "the Hello")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "Hello"}
    events = stream(agent, fields)
    assert texts_of(events, "thinking") == "the Hello"
    assert texts_of(events, "signature") == thinking["signature"]
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert kinds.index("signature_delta") == len([kind for kind in kinds if kind == "thinking_delta"])
    history = [USER, {"role": "assistant", "content": [thinking, text]}, USER]
    assert "<think>the Hello</think>\nHello" in prompt_of(agent, {"messages": history})
    redacted = {"type": "redacted_thinking", "data": "x"}
    history = [USER, {"role": "assistant", "content": [redacted, text]}, USER]
    assert agent.post(URL, REQUEST | {"messages": history}).status == 200


def test_switch_for_thinking(agent: ServerProcess) -> None:
    def n_tokens(thinking: object) -> int:
        return int(agent.post(COUNT, REQUEST | {"thinking": thinking}).body["input_tokens"])

    enabled, disabled = n_tokens({"type": "enabled", "budget_tokens": 9}), n_tokens({"type": "disabled"})
    assert n_tokens({"type": "adaptive"}) == enabled != disabled == n_tokens(None)


def test_thinking_is_off_unless_asked_for(tmp_path: Path) -> None:
    """Also what the server's option says is obeyed."""
    template = Field("STRING", "{{ 'on ' * 50 if enable_thinking else 'off' }}" + CHATML)
    model = tiny_llama(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": template})
    on: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 9}}
    for option, absent_is_on in ("auto", False), ("on", True):
        with ServerProcess(model, "--think", option) as server:
            counts = [server.post(COUNT, REQUEST | more).body["input_tokens"] for more in ({}, on)]
            assert (counts[0] == counts[1]) == absent_is_on
            off = server.post(COUNT, REQUEST | {"thinking": {"type": "disabled"}}).body["input_tokens"]
            assert off < counts[1]


def test_effort(agent: ServerProcess) -> None:
    assert "[low]" in prompt_of(agent, {"output_config": {"effort": "low"}})
    assert "[high]" in prompt_of(agent, {"output_config": {"effort": "max"}})


# --- messages ---


def test_system(agent: ServerProcess) -> None:
    blocks = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"},
              {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
              {"type": "text", "text": "Be kind."}]  # fmt: skip
    expected = "<|im_start|>system\nBe brief.\nBe kind.<|im_end|>\n<|im_start|>user\nHello"
    assert expected in prompt_of(agent, {"system": blocks})
    assert "system\nBe brief.<" in prompt_of(agent, {"system": "Be brief."})
    header = "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;Be brief."
    assert "system\nBe brief.<" in prompt_of(agent, {"system": header})


def test_system_messages_within_the_conversation(agent: ServerProcess) -> None:
    """Templates accept only one at the beginning; and roles alternate."""
    messages = [USER, {"role": "system", "content": "It is late."}, {"role": "assistant", "content": "Hi"}, USER, USER]
    prompt = prompt_of(agent, {"messages": messages})
    assert prompt == (
        "[thinking True]<|im_start|>user\nHello\n<system-reminder>\nIt is late.\n</system-reminder><|im_end|>\n"
        "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nHello\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    first = [{"role": "system", "content": "Be kind."}, USER]
    prompt = prompt_of(agent, {"system": "Be brief.", "messages": first})
    assert prompt.startswith(
        "[thinking True]<|im_start|>system\nBe brief.\nBe kind.<|im_end|>\n<|im_start|>user\nHello<"
    )


def test_accepted_without_effect(agent: ServerProcess) -> None:
    fields = REQUEST | {"metadata": {"user_id": "u"}, "top_k": 5, "top_p": 0.9, "temperature": 0.5,
                        "service_tier": "auto", "context_management": {"edits": []}}  # fmt: skip
    answer = agent.request("POST", f"{URL}?beta=true", fields, anthropic_beta="no-such-beta-2099-01-01", **VERSION)
    assert answer.status == 200


def test_count_tokens(agent: ServerProcess) -> None:
    fields = {name: value for name, value in REQUEST.items() if name != "max_tokens"} | {"tools": [ADD]}
    counted = agent.post(COUNT, fields).body
    usage = agent.post(URL, fields | {"max_tokens": 1}).body["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_models(server: ServerProcess) -> None:
    listed = server.get("/v1/models", **VERSION).body
    [model] = listed["data"]
    assert (model["type"], model["id"], model["display_name"]) == ("model", "tiny", "tiny")
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("tiny", "tiny", False)
    assert server.get("/v1/models/tiny", **VERSION).body["type"] == "model"
    assert server.get("/v1/models/tiny").body["object"] == "model"
