"""Harmony, the output format of gpt-oss: messages in channels, each with a header.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>the answer<|return|>

The prompt ends with <|start|>assistant, and may contain the recipient, too. A message to a tool is a call, the channel
`analysis` is reasoning, and everything else is the answer.
"""

import re

from localinfer.generation.tool_calls.tool_call import ParseResult, make_tool_call

CONTROL_TOKENS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
CONTROL_TOKEN = re.compile("|".join(map(re.escape, CONTROL_TOKENS)))
MESSAGE_ENDS = ("<|end|>", "<|call|>", "<|return|>")
RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.:-]+)")
HEADER = re.compile(r"\s*(?:<\|(?:channel|start|constrain|message)\|>| ?to=)")  # beginning of an answer in channels


class HarmonyParser:
    """A parser of one answer."""

    def __init__(self) -> None:
        self._held = ""  # a suffix that may begin a control token
        self._header: str | None = ""  # None within a message
        self._channel = "final"
        self._recipient = ""
        self._arguments = ""  # the received arguments of the current call
        self._has_answer = self._is_message_start = False  # whether there is answer text; whether a message begins

    @property
    def is_pending(self) -> bool:
        return bool(self._held or self._recipient)

    def push(self, text: str) -> ParseResult:
        self._held += text
        return self._consume(len(self._held) - self._n_ambiguous())

    def finish(self) -> ParseResult:
        """End the answer. A control token at the end of a call is not part of the text."""
        return self._consume(len(self._held)).joined_with(self._end_message())

    def _consume(self, end: int) -> ParseResult:
        text, self._held = self._held[:end], self._held[end:]
        parsed, position = ParseResult(), 0
        for match in CONTROL_TOKEN.finditer(text):
            parsed = parsed.joined_with(self._text(text[position : match.start()])).joined_with(
                self._control_token(match[0])
            )
            position = match.end()
        return parsed.joined_with(self._text(text[position:]))

    def _n_ambiguous(self) -> int:
        sizes = range(min(max(map(len, CONTROL_TOKENS)) - 1, len(self._held)), 0, -1)
        return next((n for n in sizes if any(token[:-1].startswith(self._held[-n:]) for token in CONTROL_TOKENS)), 0)

    def _control_token(self, token: str) -> ParseResult:
        if token in MESSAGE_ENDS or (token == "<|start|>" and self._header is None):
            ended = self._end_message()
            self._header = ""
            return ended
        if token == "<|message|>":
            self._begin_message(self._header or "")
        elif self._header is not None:
            self._header += token
        return ParseResult()

    def _begin_message(self, header: str) -> None:
        recipient = RECIPIENT.search(header)
        self._recipient = recipient[1] if recipient and recipient[1] != "assistant" else ""
        self._channel = "analysis" if "<|channel|>analysis" in header else "final"
        self._header, self._arguments, self._is_message_start = None, "", True

    def _text(self, text: str) -> ParseResult:
        if self._header is not None:
            self._header += text
            if not text or self._has_answer or HEADER.match(self._header) or self._header.isspace():
                return ParseResult()
            if any(each.startswith(self._header.lstrip()) for each in ("to=", "assistant")):
                return ParseResult()
            text = self._header  # the model does not use channels
            self._begin_message("")
        if self._recipient:
            self._arguments += text
            return ParseResult()
        if self._channel == "analysis":
            return ParseResult(reasoning=text)
        separator = "\n\n" if self._is_message_start and self._has_answer and text else ""
        self._has_answer, self._is_message_start = self._has_answer or bool(text), self._is_message_start and not text
        return ParseResult(separator + text)

    def _end_message(self) -> ParseResult:
        """End the current message, and return its call if it is one."""
        recipient, self._recipient = self._recipient, ""
        if not recipient:
            return ParseResult()
        try:
            return ParseResult(calls=(make_tool_call(recipient, self._arguments),))
        except ValueError as problem:
            return ParseResult(self._arguments, problem=str(problem))
