"""The library `mcp`, which is optional: the extra `mcp` installs it."""

from importlib.util import find_spec

from localinfer.errors import UsageError


def require_library(what: str) -> None:
    """Raise UsageError if the library is missing. `what` is the command or the option that needs it."""
    if find_spec("mcp") is None:
        raise UsageError(f"{what}: requires mcp (extra `mcp`): python -m pip install mcp")
