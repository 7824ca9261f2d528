"""The cases of llama.cpp's tests/test-chat.cpp, read from its source: answers of models, and how they are parsed.

    for case in read_cases(Path("llama.cpp")): case.template, case.answer, case.content, case.reasoning, case.calls

A small interpreter evaluates the statements that define tools, messages and cases: declarations, assignments of
members, calls of the functions that build messages, and `for` loops over lists. It skips all other statements.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCE = "tests/test-chat.cpp"
FUNCTIONS = ("test_template_output_peg_parsers", "test_lfm2_parser")
TOKEN = re.compile(
    r'R"(?P<delimiter>[^\s()"]*)\((?P<raw>.*?)\)(?P=delimiter)"|"(?P<text>(?:[^"\\]|\\.)*)"|//[^\n]*|/\*.*?\*/|\'(?:[^\'\\]|\\.)\''
    r"|(?P<number>-?\d+)|(?P<name>\w+(?:::\w+)*)|(?P<sign>[^\s\w])",
    re.DOTALL,
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
Token = tuple[str, str]  # kind and text
MESSAGE_FIELDS = ("role", "content", "content_parts", "tool_calls", "reasoning_content", "tool_name", "tool_call_id")


@dataclass
class Case:
    """One answer, the settings of its request, and what llama.cpp parses it to."""

    template: str
    answer: str
    line: int
    settings: dict[str, Any] = field(default_factory=dict)
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any, str]] = field(default_factory=list)  # name, arguments, id

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [
            {"type": "function", "function": {"name": name, "description": text, "parameters": json.loads(parameters)}}
            for name, text, parameters in self.settings.get("tools", [])
        ]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [openai_message(each) for each in self.settings.get("messages", [{"role": "user", "content": "Hi"}])]


def read_cases(llama_cpp: Path) -> list[Case]:
    """Return all cases, in the order of the source."""
    interpreter = Interpreter((llama_cpp / SOURCE).read_text("utf-8"))
    return list(interpreter.cases())


class Interpreter:
    """An interpreter of the part of C++ in which the cases are written."""

    def __init__(self, source: str) -> None:
        self._tokens, self._lines = tokenize(source)
        self._variables: dict[str, Any] = {"true": True, "false": False}
        self._position = 0

    def cases(self) -> Iterator[Case]:
        bodies = {name: self._find_body(name) for name in FUNCTIONS}
        for _ in self._statements(self._find("special_function_tool"), self._find("peg_test_case")):
            pass  # these statements define the tools and messages that all cases share
        main, (self._lfm2_start, self._lfm2_end) = (bodies[name] for name in FUNCTIONS)
        yield from self._statements(*main)

    def _find(self, name: str) -> int:
        return next(i for i, (_, text) in enumerate(self._tokens) if text == name)

    def _find_body(self, name: str) -> tuple[int, int]:
        start = self._find(name)
        while self._tokens[start][1] != "{":
            start += 1
        return start + 1, self._closing(start)

    def _closing(self, start: int) -> int:
        """Return the index of the bracket that closes the one at `start`."""
        depth = 0
        for index in range(start, len(self._tokens)):
            kind, text = self._tokens[index]
            if kind == "sign":
                depth += (text in "([{") - (text in ")]}")
            if depth == 0:
                return index
        raise ValueError("unbalanced brackets")

    # --- statements ---

    def _statements(self, start: int, end: int) -> Iterator[Case]:
        index = start
        while index < end:
            text = self._tokens[index][1]
            after = self._tokens[index + 1][1] if index + 1 < end else ""
            if text == "for" and after == "(":
                index = yield from self._loop(index + 1)
            elif text == "test_lfm2_parser" and after == "(":
                self._position = index + 2
                self._variables["template_path"] = self._expression()
                yield from self._statements(self._lfm2_start, self._lfm2_end)
                index = self._closing(index + 1) + 1
            elif after == "." and self._tokens[index + 2][1] == "test":
                yield self._case(index)
                index = self._position
            elif self._tokens[index][0] == "name" and after in ("=", "{", ".", ";", "("):
                self._assign(index, after)
                index = max(self._position, index + 1)
            else:
                index += 1

    def _loop(self, start: int) -> Any:
        """Run a loop over a list; return the index behind it."""
        head_end = self._closing(start)
        colon = next((i for i in range(start, head_end) if self._tokens[i][1] == ":"), None)
        body_end = self._closing(head_end + 1)
        if colon is None or self._tokens[colon - 1][1] == "]":
            return body_end + 1
        self._position = colon + 1
        for value in self._expression():
            self._variables[self._tokens[colon - 1][1]] = value
            yield from self._statements(head_end + 2, body_end)
        return body_end + 1

    def _assign(self, index: int, after: str) -> None:
        """Run a declaration or assignment if it is one that can be evaluated."""
        self._position = index + 1
        name, declared_type = self._tokens[index][1], self._tokens[index - 1][1]
        try:
            if after == "=" and self._tokens[index - 1][1] != ".":
                self._position = index + 2
                self._variables[name] = self._expression()
            elif after == "{" and declared_type in ("common_chat_tool", "common_chat_msg"):
                value = self._expression()
                is_message = declared_type == "common_chat_msg"
                self._variables[name] = dict(zip(MESSAGE_FIELDS, value, strict=False)) if is_message else value
            elif after == ";" and declared_type == "common_chat_msg":
                self._variables[name] = {}
            elif after == "." and self._tokens[index + 3][1] == "=" and isinstance(self._variables.get(name), dict):
                self._position = index + 4
                self._variables[name][self._tokens[index + 2][1]] = self._expression()
        except (KeyError, ValueError, TypeError, IndexError):
            self._position = index + 1  # a statement of another kind

    def _case(self, index: int) -> Case:
        self._position = index + 4
        tester, line = self._tokens[index][1], self._lines[index]
        case = Case(self._variables[tester], self._expression(), line)
        self._position += 1
        while self._tokens[self._position][1] == ".":
            name = self._tokens[self._position + 1][1]
            self._position += 3
            value = None if self._tokens[self._position][1] == ")" else self._expression()
            self._position += 1
            self._apply(case, name, value)
        return case

    def _apply(self, case: Case, name: str, value: Any) -> None:
        if name == "expect":
            case.content, case.reasoning = value.get("content", ""), value.get("reasoning_content", "")
            case.calls = [parse_call(each) for each in value.get("tool_calls", [])]
        elif name == "expect_content":
            case.content = value
        elif name == "expect_reasoning":
            case.reasoning = value
        elif name == "expect_tool_calls":
            case.calls = [parse_call(each) for each in value]
        else:
            case.settings[name] = value

    # --- expressions ---

    def _expression(self) -> Any:
        value = self._term()
        while self._tokens[self._position][1] == "+" and self._tokens[self._position][0] == "sign":
            self._position += 1
            value += self._term()
        return value

    def _term(self) -> Any:
        kind, text = self._tokens[self._position]
        self._position += 1
        if kind == "text":
            while self._tokens[self._position][0] == "text":
                text += self._tokens[self._position][1]
                self._position += 1
            return text
        if kind == "number":
            return int(text)
        if text == "{":
            return self._list("}")
        if kind == "name" and self._tokens[self._position][1] == "(":
            self._position += 1
            arguments = self._list(")")
            return BUILDERS[text](*arguments)
        if kind == "name":
            return self._variables[text] if text in self._variables else constant(text)
        raise ValueError(text)

    def _list(self, end: str) -> list[Any]:
        values = []
        while self._tokens[self._position][1] != end or self._tokens[self._position][0] != "sign":
            values.append(self._expression())
            if self._tokens[self._position][1] == ",":
                self._position += 1
        self._position += 1
        return values


def constant(name: str) -> str:
    if not name.isupper() and name != "detailed_debug":
        raise KeyError(name)
    return name


def tokenize(source: str) -> tuple[list[Token], list[int]]:
    """Return the tokens of a source, without comments, and the line of each."""
    tokens: list[Token] = []
    lines: list[int] = []
    for match in TOKEN.finditer(source):
        if (raw := match["raw"]) is not None:
            token = "text", raw
        elif match["text"] is not None:
            token = "text", unescape(match["text"])
        elif match.lastgroup is None:
            continue
        else:
            token = match.lastgroup, match[0]
        tokens.append(token)
        lines.append(source.count("\n", 0, match.start()) + 1 if token[1] == "test" else 0)
        if token[1] == "test":
            lines[-3:] = [lines[-1]] * 3  # of `tester . test`
    return tokens, lines


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)


# --- the functions that build messages ---


def assistant(content: str, reasoning: str = "", name: str = "", arguments: str = "", id: str = "") -> dict[str, Any]:
    calls = [[name, arguments, id]] if name or id else []
    return {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls}


BUILDERS: dict[str, Callable[..., Any]] = {
    "peg_tester": lambda path, *_: path.rpartition("/")[2],
    "simple_assist_msg": assistant,
    "message_with_tool_calls": lambda name, arguments: assistant("", "", name, arguments),
    "message_with_tool_calls_and_reasoning": lambda name, arguments, why: assistant("", why, name, arguments),
    "message_with_content_and_tool_call": lambda content, name, arguments: assistant(content, "", name, arguments),
    "message_with_reasoning_and_tool_call": lambda why, name, arguments: assistant("", why, name, arguments),
    "message_with_reasoning_content_and_multiple_tool_calls": lambda why, content, calls: (
        assistant(content, why) | {"tool_calls": calls}
    ),
}


def parse_call(fields: list[Any]) -> tuple[str, Any, str]:
    name, arguments, id = [*fields, ""][:3]
    with contextlib.suppress(ValueError):  # llama.cpp passes on what there is of a call that is cut off
        arguments = json.loads(arguments)
    return name, arguments, id if isinstance(id, str) else ""


def openai_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's format."""
    names = ("role", "content", "reasoning_content", "tool_call_id")
    present = {name: message[name] for name in names if message.get(name)}
    if calls := message.get("tool_calls"):
        present["tool_calls"] = [
            {"id": id or "c0", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments, id in calls
        ]
    return {"content": ""} | present
