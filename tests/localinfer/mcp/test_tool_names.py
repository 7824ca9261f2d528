"""The names by which a model calls the tools of several servers."""

from localinfer.mcp.client.server_state import ServerTool
from localinfer.mcp.client.tool_names import visible_tools


def tools(*names: tuple[str, str]) -> list[ServerTool]:
    return [ServerTool(server, name, f"number {number}", {}) for number, (server, name) in enumerate(names)]


def test_names_are_prefixed_only_where_they_are_ambiguous() -> None:
    found = visible_tools(tools(("a", "read"), ("b", "read"), ("b", "write"), ("my server", "now")), taken={"now"})
    assert [(name, tool.server, tool.name) for name, tool in found.items()] == [
        ("a__read", "a", "read"), ("b__read", "b", "read"), ("write", "b", "write"),
        ("my_server__now", "my server", "now"),
    ]  # fmt: skip


def test_a_prefixed_name_may_exist_already() -> None:
    found = visible_tools(tools(("a", "b__x"), ("b", "x"), ("c", "x")))
    assert [*found] == ["b__x", "b__x_2", "c__x"]
    assert found["b__x_2"].server == "b"


def test_the_first_of_two_tools_of_a_server_counts() -> None:
    found = visible_tools(tools(("a", "x"), ("a", "x")))
    assert [(name, tool.description) for name, tool in found.items()] == [("x", "number 0")]


def test_fingerprints_tell_definitions_apart() -> None:
    one, same, other = (ServerTool("a", "x", text, {"type": "object"}) for text in ("1", "1", "2"))
    assert one.fingerprint == same.fingerprint != other.fingerprint
