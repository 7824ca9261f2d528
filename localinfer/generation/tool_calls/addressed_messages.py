"""Answers that consist of messages with headers, which say to whom a message is addressed.

    gpt-oss            <|channel|>analysis<|message|>reasoning<|end|>
                       <|start|>assistant<|channel|>commentary to=functions.name<|message|>{...}<|call|>
                       <|start|>assistant<|channel|>final<|message|>the answer<|return|>
    Muse Glimmer        to=self<|message|>reasoning<|eom|><|start|>assistant to=name<|message|><atem:invoke ...>
    Functionary 3.2    all\nthe answer>>>name\n{...}

The prompt ends within the first header. A message to a tool is a call.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from localinfer.generation.pieces import Kind, ToolCall
from localinfer.generation.tool_calls.call_syntax import FUNCTIONARY_CALL, HARMONY_CALL, MUSE_CALL, CallSyntax
from localinfer.generation.tool_calls.json_calls import json_arguments
from localinfer.generation.tool_calls.markers import find_marker
from localinfer.generation.tool_calls.tool_call import ParseResult, ToolSchemas
from localinfer.generation.tool_calls.xml_calls import atem_calls


class Address(NamedTuple):
    """What a message is: reasoning or text, or a call of the tool `name`."""

    kind: Kind = "text"
    name: str = ""


class MessageFormat(NamedTuple):
    """The control tokens of a format, and the functions that parse a header and the body of a call."""

    start: str  # begins a header; ends a message, too, whose own end is missing
    begin: str  # ends the header
    ends: tuple[str, ...]  # of a message
    others: tuple[str, ...]  # within a header
    is_header: Callable[[str, ToolSchemas], bool]  # whether the text begins a header; otherwise it is the answer
    address: Callable[[str], Address]
    read: Callable[[str, str, ToolSchemas], list[ToolCall]]  # of the name, the body and the tools
    syntax: CallSyntax  # of calls that a grammar constrains
    opening: str = ""  # with which they begin; "" if their beginning looks like any message

    @property
    def tokens(self) -> tuple[str, ...]:
        return (self.start, self.begin, *self.ends, *self.others)


# --- gpt-oss ---

RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.:-]+)")
HARMONY_HEADER = re.compile(r"\s*(?:<\|(?:channel|start|constrain|message)\|>| ?to=)")


def is_harmony_header(header: str, _: ToolSchemas) -> bool:
    starts = any(each.startswith(header.lstrip()) for each in ("to=", "assistant"))
    return starts or bool(HARMONY_HEADER.match(header))


def harmony_address(header: str) -> Address:
    recipient = RECIPIENT.search(header)
    if recipient and recipient[1] != "assistant":
        return Address(name=recipient[1])
    return Address("reasoning" if "<|channel|>analysis" in header else "text")


HARMONY = MessageFormat(
    "<|start|>", "<|message|>", ("<|end|>", "<|call|>", "<|return|>"), ("<|channel|>", "<|constrain|>"),
    is_harmony_header, harmony_address, json_arguments, HARMONY_CALL, "<|channel|>commentary to=functions.",
)  # fmt: skip


# --- Muse Glimmer ---


def muse_address(header: str) -> Address:
    recipient = RECIPIENT.search(header)
    name = recipient[1] if recipient else "user"
    return Address("reasoning") if name == "self" else Address(name="" if name == "user" else name)


def muse_calls(_: str, body: str, tools: ToolSchemas) -> list[ToolCall]:
    body = body.strip().removeprefix("<atem:function_calls>").removesuffix("</atem:function_calls>")
    return atem_calls(body, tools)


MUSE = MessageFormat(
    "<|start|>", "<|message|>", ("<|eom|>", "<|eot|>"), (), is_harmony_header, muse_address, muse_calls, MUSE_CALL
)


# --- Functionary 3.2 ---


def is_functionary_header(header: str, tools: ToolSchemas) -> bool:
    return any(name.startswith(header.strip()) for name in ("all", *tools))


def functionary_address(header: str) -> Address:
    name = header.strip()
    return Address(name="" if name == "all" else name)


FUNCTIONARY = MessageFormat(
    ">>>", "\n", (), (), is_functionary_header, functionary_address, json_arguments, FUNCTIONARY_CALL
)


class MessageParser:
    """A parser of one answer, in one of these formats. Without `with_reasoning`, reasoning and its tags are text."""

    def __init__(self, format: MessageFormat, tools: ToolSchemas, *, with_reasoning: bool = True) -> None:
        self._format = format
        self._tools = tools
        self._with_reasoning = with_reasoning
        self._held = ""  # a suffix that may begin a control token
        self._header: str | None = ""  # None within a message
        self._address = Address()
        self._body = ""  # the received text of the current call
        self._is_reasoning = False  # whether the current message is reasoning
        self._has_answer = self._is_message_start = False  # whether there is answer text; whether a message begins

    @property
    def is_pending(self) -> bool:
        return bool(self._held or self._address.name)

    @property
    def is_in_call(self) -> bool:
        return bool(self._address.name)

    def push(self, text: str) -> ParseResult:
        self._held += text
        return self._parse(is_end=False)

    def finish(self) -> ParseResult:
        """End the answer. A control token at the end of a call is not part of the text."""
        return self._parse(is_end=True).joined_with(self._end_message())

    def _parse(self, *, is_end: bool) -> ParseResult:
        parsed, has_token = ParseResult(), True
        while self._held and has_token:
            position, token = find_marker(self._held, self._format.tokens, is_end)
            text, self._held = self._held[:position], self._held[position + len(token) :]
            has_token = bool(token)
            parsed = parsed.joined_with(self._text(text))
            if has_token:
                parsed = parsed.joined_with(self._control_token(token))
        return parsed

    def _control_token(self, token: str) -> ParseResult:
        if token in self._format.ends or (token == self._format.start and self._header is None):
            ended = self._end_message()
            self._header = ""
            return ended if self._with_reasoning or not self._is_reasoning else ended._replace(text=ended.text + token)
        if token == self._format.begin and self._header is None:
            return self._text(token)
        if token == self._format.begin and (self._header or "").strip() == "" and token.isspace():
            return ParseResult()  # a line break before the header
        if token == self._format.begin:
            return self._begin_message(self._header or "")
        if self._header is not None:
            self._header += token
        return ParseResult()

    def _begin_message(self, header: str) -> ParseResult:
        self._address = self._format.address(header)
        self._header, self._body, self._is_message_start = None, "", True
        self._is_reasoning = self._address.kind == "reasoning"
        return ParseResult(f"{header}{self._format.begin}" if self._is_reasoning and not self._with_reasoning else "")

    def _text(self, text: str) -> ParseResult:
        if self._header is not None:
            self._header += text
            header = self._header
            is_header = not text or header.isspace() or self._format.is_header(header, self._tools)
            if is_header or (self._has_answer and self._format.others):
                return ParseResult()
            text = header  # the model does not use headers
            self._address, self._header, self._is_message_start, self._is_reasoning = Address(), None, True, False
        if self._address.name:
            self._body += text
            return ParseResult()
        if self._is_reasoning:
            return ParseResult(reasoning=text) if self._with_reasoning else ParseResult(text)
        separator = "\n\n" if self._is_message_start and self._has_answer and text else ""
        self._has_answer, self._is_message_start = self._has_answer or bool(text), self._is_message_start and not text
        return ParseResult(separator + text)

    def _end_message(self) -> ParseResult:
        """End the current message, and return its calls if it is one."""
        name, self._address = self._address.name, Address()
        if not name:
            return ParseResult()
        try:
            return ParseResult(calls=tuple(self._format.read(name, self._body, self._tools)))
        except ValueError as problem:
            return ParseResult(self._body if name in self._tools else "", problem=str(problem))
