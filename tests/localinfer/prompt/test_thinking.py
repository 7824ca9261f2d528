"""Which variables switch thoughts on and off."""

import pytest

from localinfer.prompt.thinking import shows_tools, switches


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("{%- if enable_thinking is defined and enable_thinking is false %}", ["enable_thinking"]),
        ("{% if not thinking is defined %}{% set thinking = false %}{% endif %}", ["thinking"]),
        ("{{ message.thinking }}{{ message['thinking'] }}{{ 'thinking' }}", []),
        ("{{ messages }}", []),
    ],
)
def test_switches(source: str, names: list[str]) -> None:
    assert switches(source, "on") == dict.fromkeys(names, True)
    assert switches(source, "off") == dict.fromkeys(names, False)
    assert switches(source, "auto") == {}


def test_tools() -> None:
    assert shows_tools("{% if tools %}{{ tools | tojson }}{% endif %}")
    assert not shows_tools("{{ message.tools }}{{ xml_tools }}{{ 'tools' }}")
