"""The arguments of a call, passed on while the model writes them."""

import re

from localinfer.generation.pieces import ToolCallPart
from localinfer.generation.tool_calls.call_syntax import CallSyntax


class ArgumentStream:
    """The stream of one call's arguments, a JSON object. `index` counts the calls of the answer.

    There is none for calls in a list, and for arguments that are not JSON: they are passed on when they are complete.
    """

    def __init__(self, syntax: CallSyntax | None, index: int) -> None:
        self._index = index
        self._head = head_pattern(syntax) if syntax else None
        self._name = ""
        self._start = 0  # of the arguments
        self._length = 0  # of the arguments that were passed on
        self._end = ObjectEnd()

    def push(self, text: str) -> ToolCallPart | None:
        """Return the next part, if any, of a call whose text so far is this."""
        if not self._name and self._head and (match := self._head.match(text)):
            self._name, self._start = match["name"], match.end()
        if not self._name:
            return None
        part = self._end.cut(text[self._start + self._length :])
        self._length += len(part)
        return ToolCallPart(self._index, self._name, part) if part else None

    @property
    def has_begun(self) -> bool:
        """Whether any part was passed on."""
        return self._length > 0


class ObjectEnd:
    """A search for the end of a JSON object, in a text that arrives in parts."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_string = self._is_escaped = self.is_done = False

    def cut(self, text: str) -> str:
        """Return the part of the text that belongs to the object."""
        for position, char in enumerate("" if self.is_done else text, 1):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_string:
                self._is_escaped, self._is_string = char == "\\", char != '"'
            else:
                self._is_string = char == '"'
                self._depth += (char in "{[") - (char in "}]")
                if self._depth == 0:
                    self.is_done = True
                    return text[:position]
        return "" if self.is_done else text


def head_pattern(syntax: CallSyntax) -> re.Pattern[str] | None:
    """Return the pattern of the text before the arguments, or None if they are not streamed."""
    head, arguments, _ = syntax.call.partition("$ARGUMENTS")
    if not arguments or syntax.separator is not None or "$" in head.replace("$NAME", ""):
        return None
    return re.compile(re.escape(syntax.begin + head).replace(re.escape("$NAME"), r"(?P<name>[\w.:/-]+)"))
