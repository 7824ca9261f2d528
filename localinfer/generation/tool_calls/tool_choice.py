"""Which tools an answer may or must call: the argument `tool_choice` of chats, in OpenAI's formats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.generation.tool_calls.tool_call import Tool, as_list, function_of

MODES = ("none", "auto", "required")
FORMATS = 'must be none, auto, required, {"type": "function", ...} or {"type": "allowed_tools", ...}'


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`mode` is "none", "auto" or "required"; `names` are the tools that may be called, None for all."""

    mode: str = "auto"
    names: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, value: "str | Mapping[str, object] | ToolChoice") -> "ToolChoice":
        """Parse a mode, the name of a tool, or an object of OpenAI's APIs, which can also name a tool `auto`.

        Raises UsageError for anything else.
        """
        match value:
            case ToolChoice():
                return value
            case str():
                return cls(value) if value in MODES else cls("required", (value,))
            case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
                return cls("required", (name,))
            case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}:
                return cls._of_allowed(mode, tools)
            case {"type": "allowed_tools", "mode": mode, "tools": tools}:
                return cls._of_allowed(mode, tools)
        raise UsageError(f"tool_choice: {FORMATS}")

    @classmethod
    def _of_allowed(cls, mode: object, tools: object) -> "ToolChoice":
        if mode not in ("auto", "required"):
            raise UsageError("tool_choice.mode: must be auto or required")
        names = [function_of(each).get("name") for each in as_list(tools) if isinstance(each, Mapping)]
        texts = tuple(name for name in names if isinstance(name, str))
        if not texts:  # tools of other types are skipped in a request, and here
            raise UsageError("tool_choice.tools: must be a list of functions with names")
        return cls(str(mode), texts)

    def allowed(self, tools: Sequence[Tool]) -> list[Tool]:
        """Return the tools that may be called. Raises UsageError if the choice names one that does not exist."""
        names = [function_of(tool).get("name") for tool in tools]
        for name in self.names or ():
            if name not in names:
                raise UsageError(f"tool_choice: there is no tool {printable(name, 60)}")
        if self.mode == "none":
            return []
        is_any = self.names is None
        return [tool for tool, name in zip(tools, names, strict=True) if is_any or name in (self.names or ())]

    def __str__(self) -> str:
        """Return the tools, or the mode if they are all."""
        return ", ".join(self.names) if self.names else self.mode
