"""Detection of the content format: strings or parts, arguments as mappings or JSON. A supported given format stays."""

import json
import time
from functools import cache
from typing import Any

import pytest

from localinfer.chat_template.content_format import render_in_supported_format
from localinfer.chat_template.template import ChatTemplate
from localinfer.errors import LocalInferError

TEXT_ONLY = [
    "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}",  # fails with parts
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",  # prints their Python representation
    "{% for m in messages %}{{ m.role }}: {{ m.content if m.content is string else m.content | tojson }}\n{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m.content if m.content is string }}\n{% endfor %}",  # omits them
]
PARTS_ONLY = [
    "{% for m in messages %}{{ m.role }}: {% for p in m.content %}{{ p.text }}{% endfor %}\n\n{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m.content[0].text }}\n{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m.content | map(attribute='text') | join }}\n{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m.content[0]['text'] + '' }}\n{% endfor %}",  # fails with a string
]
BOTH = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "<{{ p.text }}>{% endfor %}{% endif %}\n\n{% endfor %}"
)
TEXTS = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
PARTS = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in TEXTS]


@cache
def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "", "eos_token": ""})


def rendered(source: str, messages: list[Any]) -> str:
    variables = {"messages": messages, "tools": None, "add_generation_prompt": True}
    return render_in_supported_format(template_of(source), variables).text


@pytest.mark.parametrize("source", TEXT_ONLY + PARTS_ONLY)
def test_supported_content_format(source: str) -> None:
    for messages in TEXTS, PARTS, [TEXTS[0], PARTS[1]], [PARTS[0], TEXTS[1]]:
        assert rendered(source, messages).strip() == "user: Hello\nassistant: Hi"


def test_supported_contents_are_unchanged() -> None:
    assert rendered(BOTH, TEXTS) == "user: Hello\nassistant: Hi\n"
    assert rendered(BOTH, [PARTS[0], TEXTS[1]]) == "user: <Hello>\nassistant: Hi\n"


def test_parts_are_joined_with_newlines() -> None:
    parts = [{"type": "text", "text": text} for text in ("one", "two")]
    assert rendered(TEXT_ONLY[0], [{"role": "user", "content": parts}]) == "user: one\ntwo\n"


@pytest.mark.parametrize("word", ["user", "a", ":", "", " ", "{{", "words"])
def test_short_contents_do_not_confuse_detection(word: str) -> None:
    messages = [{"role": "user", "content": word}]
    assert rendered(PARTS_ONLY[1], messages) == f"user: {word}\n" if word else "user: \n"


def test_removed_reasoning_does_not_change_the_format() -> None:
    source = BOTH.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    with_reasoning = [TEXTS[0], {"role": "assistant", "content": "<think>a secret</think>Hi"}]
    assert rendered(source, with_reasoning) == "user: Hello\nassistant: Hi\n"
    assert rendered(source, with_reasoning[1:]) == "assistant: Hi\n"


CALLS = "{% for m in messages %}{% for call in m.tool_calls %}ARGUMENTS{% endfor %}{% endfor %}"
JSON = '{"city": "Zürich", "days": [1, "<2>"]}'
MAPPING = {"city": "Zürich", "days": [1, "<2>"]}


@pytest.mark.parametrize("source", [
    "{{ call.function.arguments | tojson }}",
    "{{ '' + call.function.arguments }}",
    "{{ call.function.arguments }}",
    "{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}",
    "{{ dict(city=call.function.arguments.city, days=call.function.arguments['days']) | tojson }}",
    "{{ dict(call.function.arguments.items()) | tojson }}",
    "{{ call.function.arguments | tojson if call.function.arguments is mapping else '{' + call.function.arguments }}",
])
def test_supported_argument_format(source: str) -> None:
    for arguments in MAPPING, JSON:
        call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages = [{"role": "assistant", "tool_calls": [call]}]
        assert rendered(CALLS.replace("ARGUMENTS", source), messages) == JSON


@pytest.mark.parametrize(("source", "expected"), [
    ("{{ m.content + m.tool_calls[0].name }}", "f"),
    ("{{ m.content.split('x')[0] + m.tool_calls[0].name }}", "f"),
    ("{% if m.content is none %}{{ m.tool_calls[0].name }}{% else %}{{ m.content }}.{% endif %}", "f"),
    ("{% if m['content'] is none or m.content | length == 0 %}{{ m.content | length }}{% endif %}", "0"),
])  # fmt: skip
def test_empty_content_beside_calls(source: str, expected: str) -> None:
    """A template gets None only if it tests for None, and an empty text if it then fails."""
    message = {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}
    assert rendered("{% for m in messages %}" + source + "{% endfor %}", [message]) == expected


def test_contents_and_arguments_together() -> None:
    calls = "{% for call in m.tool_calls %}{{ call.arguments | upper + call.arguments }}{% endfor %}"
    source = "{% for m in messages %}{{ '' + m.content }}" + calls + "{% endfor %}"
    call = {"arguments": {"a": {"b": None}}}
    text = '{"a": {"b": null}}'
    assert rendered(source, [{**PARTS[1], "tool_calls": [call]}]) == "Hi" + text.upper() + text


def test_invalid_arguments_are_unchanged() -> None:
    for arguments in "Paris", "[1]", '"', "", {}, None:
        calls = [{"arguments": arguments}, {"name": "now"}, {"function": "now"}]
        source = CALLS.replace("ARGUMENTS", "{{ call | tojson }}")
        assert rendered(source, [{"role": "assistant", "tool_calls": calls}]) == "".join(map(json.dumps, calls))


def test_error_is_that_of_the_given_format() -> None:
    source = "{{ raise_exception(messages[0].content is string) }}"
    for messages, problem in (TEXTS, "True"), (PARTS, "False"):
        with pytest.raises(LocalInferError, match=f"chat_template: {problem}$"):
            rendered(source, messages)


def test_detection_timeout_keeps_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that renders the given format, and never ends with any other."""
    monkeypatch.setattr("localinfer.chat_template.template.MAX_SECONDS", 0.5)
    forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    start = time.monotonic()
    assert rendered("{% if messages[0].content is string %}" + forever + "{% endif %}nothing", PARTS) == "nothing"
    assert time.monotonic() - start < 5
