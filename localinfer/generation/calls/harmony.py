"""Harmony, in which gpt-oss answers: messages in channels, each with a header.

    <|channel|>analysis<|message|>thoughts<|end|>
    <|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>the answer<|return|>

The prompt ends with <|start|>assistant; whom a message is for may also stand there. What is for a tool is a call,
`analysis` is thought, and the rest is the answer.
"""

import re

from localinfer.generation.calls.call import Parsed, call

MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
MARK = re.compile("|".join(map(re.escape, MARKS)))
ENDS = ("<|end|>", "<|call|>", "<|return|>")
RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.:-]+)")
HEADER = re.compile(r"\s*(?:<\|(?:channel|start|constrain|message)\|>| ?to=)")  # how an answer in channels begins


class Harmony:
    """Follows one answer."""

    def __init__(self) -> None:
        self._held = ""  # perhaps the beginning of a mark
        self._header: str | None = ""  # None: within a message
        self._channel = "final"
        self._recipient = ""
        self._call = ""  # what there is of its arguments
        self._said = self._fresh = False  # is there an answer; does another message begin?

    @property
    def holds(self) -> bool:
        return bool(self._held or self._recipient)

    def push(self, text: str) -> Parsed:
        self._held += text
        return self._take(len(self._held) - self._doubtful())

    def finish(self) -> Parsed:
        """The mark at the end of a call also ends the answer, and is not part of it."""
        return self._take(len(self._held)).then(self._end())

    def _take(self, end: int) -> Parsed:
        text, self._held = self._held[:end], self._held[end:]
        parsed, at = Parsed(), 0
        for mark in MARK.finditer(text):
            parsed = parsed.then(self._words(text[at : mark.start()])).then(self._mark(mark[0]))
            at = mark.end()
        return parsed.then(self._words(text[at:]))

    def _doubtful(self) -> int:
        sizes = range(min(max(map(len, MARKS)) - 1, len(self._held)), 0, -1)
        return next((n for n in sizes if any(mark[:-1].startswith(self._held[-n:]) for mark in MARKS)), 0)

    def _mark(self, mark: str) -> Parsed:
        if mark in ENDS or (mark == "<|start|>" and self._header is None):
            ended = self._end()
            self._header = ""
            return ended
        if mark == "<|message|>":
            self._begin(self._header or "")
        elif self._header is not None:
            self._header += mark
        return Parsed()

    def _begin(self, header: str) -> None:
        recipient = RECIPIENT.search(header)
        self._recipient = recipient[1] if recipient and recipient[1] != "assistant" else ""
        self._channel = "analysis" if "<|channel|>analysis" in header else "final"
        self._header, self._call, self._fresh = None, "", True

    def _words(self, words: str) -> Parsed:
        if self._header is not None:
            self._header += words
            if not words or self._said or HEADER.match(self._header) or self._header.isspace():
                return Parsed()
            if any(each.startswith(self._header.lstrip()) for each in ("to=", "assistant")):
                return Parsed()
            words = self._header  # a model that has left its channels
            self._begin("")
        if self._recipient:
            self._call += words
            return Parsed()
        if self._channel == "analysis":
            return Parsed(thought=words)
        gap = "\n\n" if self._fresh and self._said and words else ""
        self._said, self._fresh = self._said or bool(words), self._fresh and not words
        return Parsed(gap + words)

    def _end(self) -> Parsed:
        """Of a message."""
        recipient, self._recipient = self._recipient, ""
        if not recipient:
            return Parsed()
        try:
            return Parsed(calls=(call(recipient, self._call),))
        except ValueError as problem:
            return Parsed(self._call, problem=str(problem))
