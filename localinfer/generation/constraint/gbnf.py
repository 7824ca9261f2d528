"""llama.cpp's language for grammars (GBNF), read into expressions.

    root   ::= "{" ws ( pair ("," ws pair)* )? "}" ws     # literals, rules, ( ) | * + ? {2,5}
    pair   ::= [a-z]+ ":" ws [^"\\x00-\\x1F]                # sets of characters, of all others, and . for any
    ws     ::= [ \\t\\n]*

Knows nothing of how a text is held to a grammar.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from localinfer.errors import BadForm
from localinfer.text import printable

LAST = 0x10FFFF  # character
MOST_TIMES = 2000  # llama.cpp's limit: of more at least it makes an error, of more at most any number
WORDS = re.compile(
    r"""(?P<gap>(?:\s|\#[^\r\n]*)+)
      | (?P<rule>[\w-]+)(?=\s*::=)
      | (?P<name>[\w-]+)
      | (?P<literal>"(?:[^"\\]|\\.)*")
      | (?P<set>\[(?:[^\]\\]|\\.)*\])
      | (?P<times>\{\s*\d+\s*(?:,\s*\d*\s*)?\})
      | (?P<sign>::=|[*+?|().])""",
    re.VERBOSE | re.DOTALL,
)
CHARACTER = r"(?:\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|[^\\])"
LITERAL = re.compile(CHARACTER, re.DOTALL)
SET = re.compile(f"({CHARACTER})(?:-({CHARACTER}))?", re.DOTALL)
ESCAPES = {"t": "\t", "r": "\r", "n": "\n"} | {char: char for char in '\\"[]-'}
SIGNS = {"*": (0, None), "+": (1, None), "?": (0, 1)}

Ranges = tuple[tuple[int, int], ...]  # of characters, ascending and apart, both ends included


@dataclass(frozen=True, eq=False, slots=True)
class Characters:
    """One out of these."""

    ranges: Ranges


@dataclass(frozen=True, eq=False, slots=True)
class Sequence:
    parts: tuple["Expression", ...]


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    options: tuple["Expression", ...]


@dataclass(frozen=True, eq=False, slots=True)
class Repeat:
    part: "Expression"
    least: int
    most: int | None  # None: any number


@dataclass(frozen=True, eq=False, slots=True)
class Rule:
    name: str


Expression = Characters | Sequence | Choice | Repeat | Rule
Rules = Mapping[str, Expression]


class Word(NamedTuple):
    kind: str
    text: str
    place: int  # in the grammar


def read_gbnf(text: str, flag: str) -> Rules:
    """The rules of a grammar, "root" among them. BadForm names the flag, the line and what is wrong there."""
    try:
        return Reader(text, flag).rules()
    except RecursionError:
        raise BadForm(f"{flag}: nested too deeply") from None


class Reader:
    """Takes one word of the grammar after the other."""

    def __init__(self, text: str, flag: str) -> None:
        self._text, self._flag = text, flag
        self._words = self._cut()
        self._next = 0

    def rules(self) -> Rules:
        rules: dict[str, Expression] = {}
        mentioned = [word for word in self._words if word.kind == "name"]
        while self._word.kind != "end":
            name = self._take("rule", "the name of a rule and ::=").text
            self._take("sign", "::=")
            rules[name] = self._choice()
        for word in mentioned:
            if word.text not in rules:
                raise self._error(f"there is no rule {word.text}", word)
        if "root" not in rules:
            raise BadForm(f"{self._flag}: there is no rule root")
        return rules

    def _choice(self) -> Expression:
        options = [self._sequence()]
        while self._word.text == "|":
            self._next += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Expression:
        parts: list[Expression] = []
        while self._word.kind in ("name", "literal", "set") or self._word.text in ("(", "."):
            part = self._part()
            while self._word.kind == "times" or self._word.text in SIGNS:
                least, most = self._times()
                part = Repeat(part, least, most) if most != 0 else Sequence(())
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self) -> Expression:
        word = self._word
        self._next += 1
        if word.text == "(":
            inner = self._choice()
            if self._take("sign", ")").text != ")":
                raise self._error("there is no ) to this (", word)
            return inner
        if word.kind == "name":
            return Rule(word.text)
        if word.kind == "literal":
            codes = [self._code(char, word) for char in LITERAL.findall(word.text[1:-1])]
            return Sequence(tuple(Characters(((code, code),)) for code in codes))
        return Characters(((0, LAST),) if word.text == "." else self._set(word))

    def _set(self, word: Word) -> Ranges:
        listed = word.text[1:-1]
        ends = [(low, high or low) for low, high in SET.findall(listed.removeprefix("^"))]
        ranges = united((self._code(low, word), self._code(high, word)) for low, high in ends)
        if listed.startswith("^"):
            ranges = all_but(ranges)
        if not ranges:
            raise self._error("there is no such character", word)
        return ranges

    def _code(self, char: str, word: Word) -> int:
        """Of a character, or of what stands for one."""
        if len(char) > 2:
            return min(int(char[2:], 16), LAST)  # noqa: FURB166  # the prefix is none of Python's
        if char[0] == "\\" and char[1:] not in ESCAPES:
            raise self._error(f"{char} stands for nothing", word)
        return ord(ESCAPES[char[1]] if len(char) == 2 else char)

    def _times(self) -> tuple[int, int | None]:
        """How often at least and at most the part before it comes."""
        word = self._word
        self._next += 1
        if word.text in SIGNS:
            return SIGNS[word.text]
        least, comma, most = (each.strip() for each in word.text[1:-1].partition(","))
        if int(least) > MOST_TIMES:
            raise self._error(f"so often a part cannot come (limit {MOST_TIMES})", word)
        if not comma:
            return int(least), int(least)
        if most and int(most) < int(least):
            raise self._error("more at least than at most", word)
        return int(least), int(most) if most and int(most) <= MOST_TIMES else None

    # --- words ---

    @property
    def _word(self) -> Word:
        return self._words[self._next]

    def _take(self, kind: str, what: str) -> Word:
        word = self._word
        if word.kind != kind:
            raise self._error(f"expected {what}", word)
        self._next += 1
        return word

    def _cut(self) -> list[Word]:
        words, place = [], 0
        while place < len(self._text):
            found = WORDS.match(self._text, place)
            if found is None:
                raise self._error("this means nothing", Word("", self._text[place : place + 10], place))
            if found.lastgroup and found.lastgroup != "gap":
                words.append(Word(found.lastgroup, found[0], place))
            place = found.end()
        return [*words, Word("end", "", place)]

    def _error(self, problem: str, word: Word) -> BadForm:
        line = self._text.count("\n", 0, word.place) + 1
        return BadForm(f"{self._flag}: line {line}: {printable(word.text, 40) or 'the end'}: {problem}")


def united(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ascending and apart."""
    apart: list[tuple[int, int]] = []
    for low, high in sorted(each for each in ranges if each[0] <= each[1]):
        if apart and low <= apart[-1][1] + 1:
            apart[-1] = apart[-1][0], max(high, apart[-1][1])
        else:
            apart.append((low, high))
    return tuple(apart)


def all_but(ranges: Ranges) -> Ranges:
    edges = [-1, *(edge for each in ranges for edge in each), LAST + 1]
    return tuple((low + 1, high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True) if low + 1 < high)
