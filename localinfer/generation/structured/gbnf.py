r"""A parser of llama.cpp's grammar language (GBNF).

root   ::= "{" ws ( pair ("," ws pair)* )? "}" ws     # literals, rules, ( ) | * + ? {2,5}
pair   ::= [a-z]+ ":" ws [^"\x00-\x1F]                # character sets, complements, and . for any character
ws     ::= [ \t\n]*
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from localinfer.errors import ConstraintError
from localinfer.escaping import printable

MAX_CODE_POINT = 0x10FFFF
MAX_REPETITIONS = 2000  # llama.cpp's limit: a larger minimum is an error, a larger maximum is unbounded
TOKENS = re.compile(
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
QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}

Ranges = tuple[tuple[int, int], ...]  # inclusive ranges of code points, ascending and disjoint


@dataclass(frozen=True, eq=False, slots=True)
class Characters:
    """A character set: it matches one of its characters."""

    ranges: Ranges


@dataclass(frozen=True, eq=False, slots=True)
class Sequence:
    """Expressions that match one after the other."""

    elements: tuple["Expression", ...]


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """Alternatives, one of which matches."""

    options: tuple["Expression", ...]


@dataclass(frozen=True, eq=False, slots=True)
class Repeat:
    """A repeated expression."""

    element: "Expression"
    min_count: int
    max_count: int | None  # None: unbounded


@dataclass(frozen=True, eq=False, slots=True)
class Rule:
    """A reference to a rule."""

    name: str


Expression = Characters | Sequence | Choice | Repeat | Rule
Rules = Mapping[str, Expression]


class Token(NamedTuple):
    """A token of the grammar's source."""

    kind: str
    text: str
    position: int  # character offset in the grammar


def parse_gbnf(text: str, flag: str) -> Rules:
    """Parse a grammar and return its rules, with "root" among them.

    Raises ConstraintError with the flag, the line and the problem.
    """
    try:
        return GbnfParser(text, flag).rules()
    except RecursionError:
        raise ConstraintError(f"{flag}: nested too deeply") from None


class GbnfParser:
    """A recursive descent parser."""

    def __init__(self, text: str, flag: str) -> None:
        self._text, self._flag = text, flag
        self._tokens = self._tokenize()
        self._next = 0

    def rules(self) -> Rules:
        rules: dict[str, Expression] = {}
        references = [token for token in self._tokens if token.kind == "name"]
        while self._token.kind != "end":
            name = self._expect("rule", "the name of a rule and ::=").text
            self._expect("sign", "::=")
            rules[name] = self._choice()
        for token in references:
            if token.text not in rules:
                raise self._error(f"there is no rule {token.text}", token)
        if "root" not in rules:
            raise ConstraintError(f"{self._flag}: there is no rule root")
        return rules

    def _choice(self) -> Expression:
        options = [self._sequence()]
        while self._token.text == "|":
            self._next += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Expression:
        elements: list[Expression] = []
        while self._token.kind in ("name", "literal", "set") or self._token.text in ("(", "."):
            element = self._element()
            while self._token.kind == "times" or self._token.text in QUANTIFIERS:
                min_count, max_count = self._repetition()
                element = Repeat(element, min_count, max_count) if max_count != 0 else Sequence(())
            elements.append(element)
        return elements[0] if len(elements) == 1 else Sequence(tuple(elements))

    def _element(self) -> Expression:
        token = self._token
        self._next += 1
        if token.text == "(":
            expression = self._choice()
            if self._expect("sign", ")").text != ")":
                raise self._error("unclosed (", token)
            return expression
        if token.kind == "name":
            return Rule(token.text)
        if token.kind == "literal":
            codes = [self._code_point(char, token) for char in LITERAL.findall(token.text[1:-1])]
            return Sequence(tuple(Characters(((code, code),)) for code in codes))
        return Characters(((0, MAX_CODE_POINT),) if token.text == "." else self._set(token))

    def _set(self, token: Token) -> Ranges:
        content = token.text[1:-1]
        bounds = [(low, high or low) for low, high in SET.findall(content.removeprefix("^"))]
        ranges = merge_ranges((self._code_point(low, token), self._code_point(high, token)) for low, high in bounds)
        if content.startswith("^"):
            ranges = complement(ranges)
        if not ranges:
            raise self._error("empty character set", token)
        return ranges

    def _code_point(self, char: str, token: Token) -> int:
        """Return the code point of a character or an escape sequence."""
        if len(char) > 2:
            return min(int(char[2:], 16), MAX_CODE_POINT)  # noqa: FURB166  # the prefix is not Python's
        if char[0] == "\\" and char[1:] not in ESCAPES:
            raise self._error(f"unknown escape sequence {char}", token)
        return ord(ESCAPES[char[1]] if len(char) == 2 else char)

    def _repetition(self) -> tuple[int, int | None]:
        """Return the minimum and maximum count of a quantifier."""
        token = self._token
        self._next += 1
        if token.text in QUANTIFIERS:
            return QUANTIFIERS[token.text]
        minimum, comma, maximum = (each.strip() for each in token.text[1:-1].partition(","))
        if int(minimum) > MAX_REPETITIONS:
            raise self._error(f"too many repetitions (limit {MAX_REPETITIONS})", token)
        if not comma:
            return int(minimum), int(minimum)
        if maximum and int(maximum) < int(minimum):
            raise self._error("the minimum exceeds the maximum", token)
        return int(minimum), int(maximum) if maximum and int(maximum) <= MAX_REPETITIONS else None

    # --- tokens ---

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _expect(self, kind: str, expected: str) -> Token:
        token = self._token
        if token.kind != kind:
            raise self._error(f"expected {expected}", token)
        self._next += 1
        return token

    def _tokenize(self) -> list[Token]:
        tokens, position = [], 0
        while position < len(self._text):
            match = TOKENS.match(self._text, position)
            if match is None:
                raise self._error("syntax error", Token("", self._text[position : position + 10], position))
            if match.lastgroup and match.lastgroup != "gap":
                tokens.append(Token(match.lastgroup, match[0], position))
            position = match.end()
        return [*tokens, Token("end", "", position)]

    def _error(self, problem: str, token: Token) -> ConstraintError:
        line = self._text.count("\n", 0, token.position) + 1
        return ConstraintError(f"{self._flag}: line {line}: {printable(token.text, 40) or 'the end'}: {problem}")


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of the ranges, ascending and disjoint."""
    disjoint: list[tuple[int, int]] = []
    for low, high in sorted(each for each in ranges if each[0] <= each[1]):
        if disjoint and low <= disjoint[-1][1] + 1:
            disjoint[-1] = disjoint[-1][0], max(high, disjoint[-1][1])
        else:
            disjoint.append((low, high))
    return tuple(disjoint)


def complement(ranges: Ranges) -> Ranges:
    """Return the ranges of all other characters."""
    edges = [-1, *(edge for each in ranges for edge in each), MAX_CODE_POINT + 1]
    return tuple((low + 1, high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True) if low + 1 < high)
