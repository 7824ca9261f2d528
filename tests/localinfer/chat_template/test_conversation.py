"""Validation of conversations: the first error is named; valid values become the variables of transformers."""

import json
from typing import Any

import pytest

from localinfer.chat_template.conversation import Conversation, parse_template_kwargs
from localinfer.errors import UsageError

HELLO = {"role": "user", "content": "Hello"}


def message(**changes: Any) -> list[dict[str, Any]]:
    return [HELLO, HELLO | changes]


@pytest.mark.parametrize(("messages", "error"), [
    (None, "messages: must be a list"), ("Hello", "messages: must be a list"), ([], "messages: must be a list"),
    ([123], "messages[0]: must be a mapping"), ([{}], "messages[0].role: must be a string"),
    ([{"role": 123, "content": ""}], "messages[0].role: must be a string"),
    (message(role="a b"), "messages[1].role: must be a single word such as user, not 'a b'"),
    (message(content=123), "messages[1].content: must be a string or a list of parts"),
    (message(content=None), "messages[1].content: must be a string or a list of parts"),
    (message(content=None, tool_calls=[]), "messages[1].content: must be a string or a list of parts"),
    ([{"role": "user"}], "messages[0].content: must be a string or a list of parts"),
    (message(content=["Hello"]), "messages[1].content[0]: must be a part, such as"),
    (message(content=[{"text": "Hello"}]), "messages[1].content[0]: must be a part, such as"),
    (message(content=[{"type": "text"}]), "messages[1].content[0].text: must be a string"),
    (message(content=[{"type": "text", "text": ""}, {"type": "image_url", "image_url": {}}]),
     "messages[1].content[1].type: must be text, image, audio or video, not image_url"),
    (message(tool_calls="f"), "messages[1].tool_calls: must be a list"),
    (message(tool_calls=["f"]), "messages[1].tool_calls[0]: must be a mapping"),
])  # fmt: skip
def test_invalid_messages(messages: Any, error: str) -> None:
    with pytest.raises(UsageError) as problem:
        Conversation(messages=messages)
    assert str(problem.value).startswith(error)


@pytest.mark.parametrize(("more", "error"), [
    ({"tools": {}}, "tools: must be a list"), ({"tools": ["f"]}, r"tools[0]: must be a mapping"),
    ({"documents": "text"}, "documents: must be a list"), ({"documents": ["text"]}, "documents[0]: must be a mapping"),
    ({"template_kwargs": []}, "template_kwargs: must be a mapping"),
    ({"template_kwargs": {"a b": 1}}, "template_kwargs: 'a b' is not a valid variable name"),
    ({"template_kwargs": {1: 1}}, "template_kwargs: 1 is not a valid variable name"),
    ({"template_kwargs": {"messages": []}}, "template_kwargs: messages is reserved"),
])  # fmt: skip
def test_other_invalid_fields(more: Any, error: str) -> None:
    with pytest.raises(UsageError) as problem:
        Conversation(messages=[HELLO], **more)
    assert str(problem.value).startswith(error)


def test_valid_messages() -> None:
    messages = (
        {"role": "developer", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": {"degrees": 21}},
        {"role": "assistant_tool-call2", "content": [{"type": "text", "text": "", "more": 1}], "name": 5},
        {"role": "助手", "content": []},
    )
    assert len(Conversation(messages=messages).variables()["messages"]) == len(messages)  # type: ignore[arg-type]


def test_none_values_are_omitted() -> None:
    [message] = Conversation(messages=[HELLO | {"name": None, "tool_calls": None}]).variables()["messages"]
    assert message == HELLO


@pytest.mark.parametrize("more", [{}, {"content": None}])
def test_message_with_calls_has_a_content(more: dict[str, None]) -> None:
    """OpenAI's clients send null or nothing, and many templates fail then."""
    call = {"function": {"name": "f", "arguments": "{}"}}
    [message] = Conversation(messages=[{"role": "assistant", "tool_calls": [call]} | more]).variables()["messages"]
    assert message == {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_has_all_template_names(name: str) -> None:
    [message] = Conversation(messages=[HELLO | {name: "Hm."}]).variables()["messages"]
    assert message == HELLO | {name: "Hm.", "thinking": "Hm.", "reasoning_content": "Hm."}


def test_continued_message_has_no_generation_prompt() -> None:
    assert Conversation(messages=[HELLO]).variables()["add_generation_prompt"]
    assert not Conversation(messages=[HELLO], continue_final_message=True).variables()["add_generation_prompt"]


def test_variables_of_firefunction() -> None:
    tool = {"name": "é"}
    assert json.loads(Conversation(messages=[HELLO], tools=[tool]).variables()["functions"]) == [tool]  # type: ignore[arg-type]
    assert Conversation(messages=[HELLO]).variables()["functions"] == ""  # the template appends it to a text


def test_parse_template_kwargs() -> None:
    assert parse_template_kwargs("") == {}
    assert parse_template_kwargs('{"enable_thinking": false, "a": [1]}') == {"enable_thinking": False, "a": [1]}
    for text, error in (
        ("{", "invalid JSON: "), ("[1]", "must be a JSON object, such as "), ("[" * 10**6, "invalid JSON: "),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=f"^chat_template_kwargs: {error}"):
            parse_template_kwargs(text)
