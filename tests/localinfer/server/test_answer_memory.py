"""Token ids of earlier answers, which are added only to unchanged answers of the same conversation."""

import json
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess
from tiny import CHATML, Field, tiny_llama

from localinfer.server.requests.answer_memory import LIMIT, AnswerMemory

USER = {"role": "user", "content": "Add one."}
CHATML_TOOLS = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}" + CHATML


def answer(call_id: str = "", a: int = 1, **more: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": {"a": a}}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


def sent_call(arguments: object) -> dict[str, Any]:
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def text(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (answer("call00000", ids=[1, 2], reasoning_ids=[3]), answer("x")),
        (answer(ids=[1, 2], reasoning_ids=[3]), answer("x") | {"content": None}),
        (answer(ids=[1, 2]), sent_call('{"a": 1}')),
        (answer(ids=[1, 2]), sent_call('{"a":1}')),
        (text("Two.", ids=[1, 2]), text("Two.")),
        (text("Two.", ids=[1, 2]), text([{"type": "text", "text": "T"}, {"type": "text", "text": "wo."}])),
    ],
)
def test_answers_get_their_ids(given: dict[str, Any], sent: dict[str, Any]) -> None:
    memory = AnswerMemory()
    memory.add("m", [USER], given)
    ids = {name: given[name] for name in ("ids", "reasoning_ids") if name in given}
    assert memory.with_token_ids("m", [USER, sent, USER]) == [USER, sent | ids, USER]


@pytest.mark.parametrize(
    ("model", "messages"),
    [
        ("other", [USER, text("Two.")]),
        ("m", [USER, text("Two")]),
        ("m", [USER | {"content": "Add two."}, text("Two.")]),
        ("m", [USER, USER, text("Two.")]),
        ("m", [text("Two.")]),
        ("m", [USER, USER | {"content": "Two."}]),
        ("m", [USER, answer("x")]),
        ("m", [USER, sent_call('{"a": "2"}')]),
        ("m", [USER, sent_call('{"a": 2')]),
        ("m", [USER, sent_call("[" * 100_000)]),
        ("m", ["invalid", {"role": 1, "tool_calls": [3]}, {"tool_calls": "x"}, {}, None]),
    ],
)
def test_other_messages_get_none(model: str, messages: list[Any]) -> None:
    memory = AnswerMemory()
    memory.add("m", [USER], text("Two.", ids=[1, 2]))
    memory.add("m", [USER], answer("x", a=2, ids=[3]))
    assert memory.with_token_ids(model, messages) == messages


def test_the_least_recently_used_answer_is_forgotten() -> None:
    memory = AnswerMemory()
    for number in range(LIMIT):
        memory.add("m", [USER], text(str(number), ids=[number]))
    memory.with_token_ids("m", [USER, text("0")])
    memory.add("m", [USER], text("new", ids=[7]))
    assert "ids" in memory.with_token_ids("m", [USER, text("0")])[1]
    assert "ids" not in memory.with_token_ids("m", [USER, text("1")])[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_the_next_turn_reads_no_token_of_the_answer(server: ServerProcess, path: str, stream: bool) -> None:
    """The random answer consists of other tokens than those that its text is tokenized to."""
    messages = [{"role": "user", "content": f"Tell me something about {path} {stream}."}]
    if path == "/api/chat":
        options = {"temperature": 1.0, "seed": 3, "num_predict": 100}
        limits = {"options": options, "format": {"type": "string", "pattern": "^[the ]{60}$"}}
    else:
        limits = {"temperature": 1.0, "seed": 3, "max_tokens": 100, "grammar": 'root ::= [the ]{60}'}
    said, n_tokens = ask(server, path, limits | {"messages": messages, "stream": stream, "model": "tiny"})
    assert len(server.post("/tokenize", {"content": said}).body["tokens"]) != n_tokens
    n_prompt = server.post("/v1/chat/completions/input_tokens", {"messages": messages}).body["input_tokens"]
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "More."}]
    found = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}).body["timings"]
    assert found["cache_n"] >= n_prompt + n_tokens - 1


@pytest.mark.parametrize("spaces", [", ", ","])
def test_the_result_of_a_call_is_all_that_is_read(tmp_path: Path, spaces: str) -> None:
    """The arguments come back as other JSON text than the model wrote."""
    written = '<tool_call>\n{"arguments": {"a":  1,  "b":  [2]},  "name": "add"}\n</tool_call>'
    grammar = f"root ::= {json.dumps(written)}"
    tools = [{"type": "function", "function": {"name": "add"}}]
    messages: list[dict[str, Any]] = [USER]
    fields = {"messages": messages, "tools": tools, "temperature": 1.0, "max_tokens": 300}
    model = tiny_llama(tmp_path / "m.gguf", n_ctx=2048, **{"tokenizer.chat_template": Field("STRING", CHATML_TOOLS)})
    with ServerProcess(model) as server:
        first = server.post("/v1/chat/completions", fields | {"grammar": grammar}).body
        [call] = first["choices"][0]["message"]["tool_calls"]
        call["function"]["arguments"] = json.dumps({"a": 1, "b": [2]}, separators=(spaces, ":"))
        result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
        messages += [{"role": "assistant", "content": "", "tool_calls": [call]}, result]
        found = server.post("/v1/chat/completions", fields | {"max_tokens": 1}).body["timings"]
    assert found["cache_n"] >= first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
    assert found["prompt_n"] < 60


def ask(server: ServerProcess, path: str, body: dict[str, Any]) -> tuple[str, int]:
    """Return the text of the answer, and the number of its tokens, without that which ends it."""
    if path == "/api/chat":
        lines = server.lines_of(path, body)
        return "".join(line["message"]["content"] for line in lines), lines[-1]["eval_count"] - 1
    if not body["stream"]:
        reply = server.post(path, body).body
        return reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"] - 1
    events = server.events(path, body | {"stream_options": {"include_usage": True}})
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    return text, events[-1]["usage"]["completion_tokens"] - 1
