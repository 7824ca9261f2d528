"""Chat templates that conversion adds for families whose checkpoints have none: they render the same as the template
that llama.cpp's converter adds."""

from pathlib import Path
from typing import Any

import pytest
import reference_models

from localinfer.chat_template.content_format import render_in_supported_format
from localinfer.chat_template.conversation import Conversation
from localinfer.chat_template.template import ChatTemplate
from localinfer.conversion import open_checkpoint

EFFORT = (
    '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how much to think in your '
    "thinking channel (not including the response channel), supported values include `low`, `medium`, `high`, and "
    "`max`.\nNow the system is invoked with `thinking_effort=max`.<|close|>message<|sep|><|end_of_msg|>"
)
TOOLS = (
    '<|open|>message role="system" type="tool-declare"<|sep|># Tools\nHere are the available tools, described in '
    'JSONSchema.\n\n```json\n[{"function":{"name":"now","parameters":{"properties":{},"type":"object"}},'
    '"type":"function"}]\n```<|close|>message<|sep|><|end_of_msg|>'
)
CALLS = (
    '<|open|>message role="user"<|sep|>Now?<|close|>message<|sep|><|end_of_msg|>'
    '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>Hm<|close|>think<|sep|>'
    "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="now" index="1"<|sep|>'
    '<|open|>argument key="in" type="string"<|sep|>a "b"<|close|>argument<|sep|>'
    '<|open|>argument key="n" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|>'
    '<|open|>call tool="later" index="2"<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
    '<|open|>message role="tool" tool="now" index="1"<|sep|>12<|close|>message<|sep|><|end_of_msg|>'
    '<|open|>message role="tool" tool="later" index="2"<|sep|>13<|close|>message<|sep|><|end_of_msg|>'
)

WITHOUT_REASONING = (
    '<|open|>message role="system"<|sep|>Brief.<|close|>message<|sep|><|end_of_msg|>'
    '<|open|>message role="user" name="A &amp; &quot;B&quot;"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>'
    '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>Hello<|close|>response<|sep|>'
    "<|close|>message<|sep|><|end_of_msg|>"
    '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'
)


def call(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATION = [
    {"role": "user", "content": "Now?"},
    {
        "role": "assistant", "content": "", "reasoning_content": "Hm",
        "tool_calls": [call("x", "now", **{"in": 'a "b"', "n": 2}), call("y", "later")],
    },
    {"role": "tool", "tool_call_id": "x", "content": "12"},
    {"role": "tool", "tool_call_id": "y", "content": "13"},
]  # fmt: skip
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def template(folder: Path) -> str:
    """Return the template of the converted checkpoint."""
    value = open_checkpoint(folder).fields["tokenizer.chat_template"].value
    assert isinstance(value, bytes)
    return value.decode()


@pytest.mark.parametrize(
    ("conversation", "expected"),
    [
        (
            Conversation(messages=CONVERSATION, tools=[NOW]),
            f'{TOOLS}{EFFORT}{CALLS}<|open|>message role="assistant"<|sep|><|open|>think<|sep|>',
        ),
        (
            Conversation(
                messages=[
                    {"role": "system", "content": "Brief."},
                    {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": 'A & "B"'},
                    {"role": "assistant", "content": "Hello"},
                ],
                template_kwargs={"thinking": False},
            ),
            WITHOUT_REASONING,
        ),
    ],
    ids=["calls", "without reasoning"],
)
def test_kimi_k3(conversation: Conversation, expected: str, tmp_path: Path) -> None:
    source = template(reference_models.checkpoint("kimi-k3-wide", tmp_path))
    assert render_in_supported_format(ChatTemplate(source, {}), conversation.variables()).text == expected


def test_a_template_of_the_checkpoint_takes_precedence(tmp_path: Path) -> None:
    folder = reference_models.checkpoint("kimi-k3-wide", tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert template(folder) == "{{ messages }}"
