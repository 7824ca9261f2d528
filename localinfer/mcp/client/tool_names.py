"""The names by which a model calls the tools of several servers."""

import re
from collections import Counter
from collections.abc import Collection, Iterable

from localinfer.mcp.client.server_state import ServerTool

TOOL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def visible_tools(tools: Iterable[ServerTool], taken: Collection[str] = ()) -> dict[str, ServerTool]:
    """Return the tools by the names that the model sees: that of the server, or SERVER__TOOL if several tools have it,
    or if it is `taken`.

    The first one of two tools of a server that have the same name counts. Of names that are still equal, all but the
    first get a number.
    """
    unique = {(each.server, each.name): each for each in reversed([*tools])}
    ordered = [*reversed(unique.values())]
    counts = Counter(each.name for each in ordered)
    visible: dict[str, ServerTool] = {}
    for each in ordered:
        name = each.name if counts[each.name] == 1 and each.name not in taken else prefixed(each)
        number, candidate = 1, name
        while candidate in visible or candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        visible[candidate] = each
    return visible


def prefixed(tool: ServerTool) -> str:
    """Return SERVER__TOOL. Characters of the server's name that names of functions cannot have become _."""
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', tool.server)}__{tool.name}"
