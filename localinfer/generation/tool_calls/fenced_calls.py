"""Calls that a model writes as Markdown, in code blocks behind other text:

    I read the file.

    ```json
    {"name": "read", "arguments": {"path": "a.txt"}}
    ```

Small models write them instead of the format that their chat template shows. So does an explanation of how to call a
tool, and it must not be executed by mistake. Such a block is only a call if it is an object of exactly `name`, that of
an offered tool, and `arguments`, which match its JSON schema, and if nothing follows but further blocks of this kind. A
block within another block, of indented text or in a quotation is never one.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, NamedTuple

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.argument_stream import ObjectEnd
from localinfer.generation.tool_calls.json_calls import parse_values
from localinfer.generation.tool_calls.tool_call import ToolSchemas

FENCE, CLOSING_FENCE = "```json", "```"
SPACE = re.compile(r"\s+")
MAX_LINE = 1000  # characters of a line that are looked at
MAX_SPACE = 200  # characters of white space before the name of a call
OPENING = re.compile(r"\s*```json[ \t]*\r?\n\s*(?=\{)")
CLOSING = re.compile(r"[ \t]*\r?\n\s*```")
INDENTATION = re.compile(" {0,3}")
FENCE_LINE = re.compile(r" {0,3}(?P<fence>`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)")

ArgumentCheck = Callable[[str, Mapping[str, Any]], str]  # of a tool's name and arguments: "" or how they are invalid


class FencedCallRules(NamedTuple):
    """How arguments are checked, and how many calls an answer may have, None for any number."""

    check: ArgumentCheck
    max_calls: int | None = None

    def allows(self, n_calls: int) -> bool:
        return self.max_calls is None or n_calls <= self.max_calls


class CodeBlocks:
    """The code blocks of Markdown in a text that arrives in parts."""

    def __init__(self) -> None:
        self._line = ""  # the last line so far
        self._fence = ""  # that opened the block in which the text ends

    def push(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for match in filter(None, map(FENCE_LINE.fullmatch, lines)):
            fence = match["fence"]
            if not self._fence:
                self._fence = fence
            elif fence.startswith(self._fence) and not match["info"].strip():
                self._fence = ""
        self._line = self._line[:MAX_LINE]

    def may_begin_after(self, space: str) -> bool:
        """Return whether a block may begin behind the text and this white space."""
        after = copy(self)
        after.push(space)
        return not after._fence and bool(INDENTATION.fullmatch(after._line))


class FencedCalls:
    """The blocks with which a text begins. `calls` are the calls in them, and `end` is where the last block ends."""

    def __init__(self, tools: ToolSchemas, check: ArgumentCheck) -> None:
        self.calls: list[ToolCall] = []
        self.end = 0
        self.problem = ""  # of the arguments of a call
        self._check, self._tools = check, tools
        self._heads = call_heads(tools)
        self._call: ToolCall | None = None  # of the block after `end`
        self._object = ObjectEnd()
        self._start = self._object_end = 0  # of the JSON object in this block, as far as it was read

    def are_all(self, text: str, *, is_end: bool) -> bool | None:
        """Return whether the text consists of calls; None if this is still open. It is the same text as before, with
        more behind it.
        """
        while (is_found := self._read_block(text)) and text[self.end :].strip():
            pass
        if is_found is False:
            return False
        return self._call is None and not text[self.end :].strip() if is_end else None

    def _read_block(self, text: str) -> bool | None:
        """Return whether a block was read; None if it is incomplete."""
        if not self._start:
            return self._begin_block(text)
        if not self._call:
            self._object_end += len(self._object.cut(text[self._object_end :]))
            if not self._object.is_done:
                return None
            self._call = self._read_call(text[self._start : self._object_end])
            return bool(self._call)
        rest = text[self._object_end :]
        if match := CLOSING.match(rest):
            self.calls.append(self._call)
            self.end = self._object_end + match.end()
            self._call, self._start, self._object = None, 0, ObjectEnd()
            return True
        is_own_line = not rest.strip() or "\n" in rest[: len(rest) - len(rest.lstrip())]
        return None if is_own_line and CLOSING_FENCE.startswith(rest.strip()) else False

    def _begin_block(self, text: str) -> bool | None:
        rest = text[self.end :]
        if self.calls and rest.lstrip(" \t")[:1] not in ("", "\r", "\n"):  # behind a fence on its line
            return False
        compact = SPACE.sub("", rest[: MAX_SPACE + max(map(len, self._heads))])
        if not any(map(compact.startswith, self._heads)):
            return None if any(head.startswith(compact) for head in self._heads) else False
        if not (match := OPENING.match(rest)):
            return False
        self._start = self._object_end = self.end + match.end()
        return True

    def _read_call(self, text: str) -> ToolCall | None:
        try:
            values = parse_values(text)
        except ValueError:
            return None
        match values:
            case [{"name": str(name), "arguments": dict(arguments), **rest}] if not rest and name in self._tools:
                self.problem = self._check(name, arguments)
                return None if self.problem else ToolCall(name, arguments)
        return None


def call_heads(tools: Iterable[str]) -> list[str]:
    """Return how blocks may begin, without white space."""
    names = [f'"name":{json.dumps(name, ensure_ascii=False)}' for name in tools]
    heads = [f"{FENCE}{brackets}{key}" for brackets in ("{", "{{") for key in (*names, '"arguments":{')]
    return [SPACE.sub("", head) for head in heads]
