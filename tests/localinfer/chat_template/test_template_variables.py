"""Detection of the template variables that enable or disable reasoning, and of tools."""

from datetime import datetime
from typing import Any, cast

import pytest

from localinfer.chat_template.conversation import Conversation
from localinfer.chat_template.template_variables import (
    date_variables,
    reasoning_keys,
    supports_tools,
    thinking_variables,
)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("{%- if enable_thinking is defined and enable_thinking is false %}", ["enable_thinking"]),
        ("{% if not thinking is defined %}{% set thinking = false %}{% endif %}", ["thinking"]),
        ("{{ message.thinking }}{{ message['thinking'] }}{{ 'thinking' }}", []),
        ("{{ messages }}", []),
    ],
)
def test_thinking_variables(source: str, names: list[str]) -> None:
    assert thinking_variables(source, "on") == dict.fromkeys(names, True)
    assert thinking_variables(source, "off") == dict.fromkeys(names, False)
    assert thinking_variables(source, "auto") == ({"enable_thinking": True} if "enable_thinking" in names else {})


@pytest.mark.parametrize(("source", "name", "off", "on"), [
    ("{% if reasoning_effort not in ['high', 'low', 'no_think'] %}", "reasoning_effort", "no_think", "high"),
    ('{% if reasoning_effort in ["low", "minimal"] %}<|think|>{% endif %}', "reasoning_effort", "minimal", "high"),
    ('{% if thinking_mode == "disabled" %}</think>{% endif %}', "thinking_mode", "disabled", "enabled"),
])  # fmt: skip
def test_switches_that_are_no_flags(source: str, name: str, off: str, on: str) -> None:
    assert thinking_variables(source, "off") == {name: off}
    assert thinking_variables(source, "on") == {name: on}
    assert thinking_variables(source, "auto") == {}
    assert thinking_variables(source + "{{ enable_thinking }}", "off") == {"enable_thinking": False}


def test_effort_without_such_a_value() -> None:
    assert thinking_variables("{{ reasoning_effort }} is not 'low'", "off") == {}


@pytest.mark.parametrize(("source", "is_read"), [
    ("{{ message.reasoning }}", True), ("{{ message['reasoning'] }}", True),
    ("{{ message.reasoning_content }}{{ 'reasoning' }}", False),
])  # fmt: skip
def test_keys_of_reasoning(source: str, is_read: bool) -> None:
    keys = reasoning_keys(source)
    assert ("reasoning" in keys) is is_read
    message = {"role": "assistant", "content": "A", "reasoning_content": "R"}
    [normalized] = cast(list[Any], Conversation(messages=[message]).variables(keys)["messages"])
    assert normalized == message | dict.fromkeys(keys, "R")


def test_supports_tools() -> None:
    assert supports_tools("{% if tools %}{{ tools | tojson }}{% endif %}")
    assert not supports_tools("{{ message.tools }}{{ xml_tools }}{{ 'tools' }}")


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        ("{% if not date_string is defined %}x{% endif %}{{ date_string }}", {"date_string": "05 Mar 2026"}),
        ("{{ 'Today is ' + datetime + '.' }}", {"datetime": "Mar 05 2026"}),
        ("{{ strftime_now('%d %b %Y') }}", {}),
        ("{{ message.date_string }}", {}),
    ],
)
def test_date_variables(source: str, variables: dict[str, str]) -> None:
    assert date_variables(source, datetime(2026, 3, 5)) == variables
