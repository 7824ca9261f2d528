"""Detection of the template variables that enable or disable reasoning, and of tools."""

import pytest

from localinfer.chat_template.template_variables import supports_tools, thinking_variables


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
    assert thinking_variables(source, "auto") == {}


def test_supports_tools() -> None:
    assert supports_tools("{% if tools %}{{ tools | tojson }}{% endif %}")
    assert not supports_tools("{{ message.tools }}{{ xml_tools }}{{ 'tools' }}")
