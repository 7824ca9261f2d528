"""Contents as texts or parts, arguments as mappings or JSON: what is given goes first, what is understood wins."""

import json
import time
from functools import cache
from typing import Any

import pytest

from localinfer.errors import LocalInferError
from localinfer.prompt.forms import render_in_form
from localinfer.prompt.template import ChatTemplate

TEXT_ONLY = [
    "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}",  # fails with parts
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",  # shows them as Python does
    "{% for m in messages %}{{ m.role }}: {{ m.content if m.content is string else m.content | tojson }}\n{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m.content if m.content is string }}\n{% endfor %}",  # leaves them out
]
PARTS_ONLY = [
    "{% for m in messages %}{{ m.role }}: {% for p in m.content %}{{ p.text }}{% endfor %}\n\n{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m.content[0].text }}\n{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m.content | map(attribute='text') | join }}\n{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m.content[0]['text'] + '' }}\n{% endfor %}",  # fails with a text
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
    return render_in_form(template_of(source), variables).text


@pytest.mark.parametrize("source", TEXT_ONLY + PARTS_ONLY)
def test_a_template_gets_the_form_that_it_takes(source: str) -> None:
    for messages in TEXTS, PARTS, [TEXTS[0], PARTS[1]], [PARTS[0], TEXTS[1]]:
        assert rendered(source, messages).strip() == "user: Hello\nassistant: Hi"


def test_what_is_understood_stays_as_it_is() -> None:
    assert rendered(BOTH, TEXTS) == "user: Hello\nassistant: Hi\n"
    assert rendered(BOTH, [PARTS[0], TEXTS[1]]) == "user: <Hello>\nassistant: Hi\n"


def test_several_parts_are_lines() -> None:
    parts = [{"type": "text", "text": text} for text in ("one", "two")]
    assert rendered(TEXT_ONLY[0], [{"role": "user", "content": parts}]) == "user: one\ntwo\n"


@pytest.mark.parametrize("word", ["user", "a", ":", "", " ", "{{", "words"])
def test_short_words_are_not_mistaken_for_the_templates_own(word: str) -> None:
    messages = [{"role": "user", "content": word}]
    assert rendered(PARTS_ONLY[1], messages) == f"user: {word}\n" if word else "user: \n"


def test_thoughts_that_a_template_takes_away_do_not_come_back_in_another_form() -> None:
    source = BOTH.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    said = [TEXTS[0], {"role": "assistant", "content": "<think>a secret</think>Hi"}]
    assert rendered(source, said) == "user: Hello\nassistant: Hi\n"
    assert rendered(source, said[1:]) == "assistant: Hi\n"


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
])
def test_arguments_likewise(source: str) -> None:
    for arguments in MAPPING, JSON:
        call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages = [{"role": "assistant", "tool_calls": [call]}]
        assert rendered(CALLS.replace("ARGUMENTS", source), messages) == JSON


def test_contents_and_arguments_at_once() -> None:
    calls = "{% for call in m.tool_calls %}{{ call.arguments | upper + call.arguments }}{% endfor %}"
    source = "{% for m in messages %}{{ '' + m.content }}" + calls + "{% endfor %}"
    call = {"arguments": {"a": {"b": None}}}
    text = '{"a": {"b": null}}'
    assert rendered(source, [{**PARTS[1], "tool_calls": [call]}]) == "Hi" + text.upper() + text


def test_arguments_that_are_no_mapping_stay_what_they_are() -> None:
    for arguments in "Paris", "[1]", '"', "", {}, None:
        calls = [{"arguments": arguments}, {"name": "now"}, {"function": "now"}]
        source = CALLS.replace("ARGUMENTS", "{{ call | tojson }}")
        assert rendered(source, [{"role": "assistant", "tool_calls": calls}]) == "".join(map(json.dumps, calls))


def test_an_error_is_that_of_what_was_given() -> None:
    source = "{{ raise_exception(messages[0].content is string) }}"
    for messages, problem in (TEXTS, "True"), (PARTS, "False"):
        with pytest.raises(LocalInferError, match=f"chat_template: {problem}$"):
            rendered(source, messages)


def test_other_forms_cost_no_text_and_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that answers what was given, and runs on with everything else."""
    monkeypatch.setattr("localinfer.prompt.template.MAX_SECONDS", 0.5)
    forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    start = time.monotonic()
    assert rendered("{% if messages[0].content is string %}" + forever + "{% endif %}nothing", PARTS) == "nothing"
    assert time.monotonic() - start < 5
