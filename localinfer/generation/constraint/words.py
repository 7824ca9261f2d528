"""What parts of a grammar may be words to a greedy lexer.

llguidance cuts a text into words, each as long as it can be, and then parses the words. GBNF knows no words: "note" is
a text of `[a-z]+ "e"`, and a lexer for which the first part is a word would never let the second one begin. So a part
becomes a word only where no text exists that would be cut otherwise; where one does, the part is broken up. At worst
words are single characters: these are always right, but slow.

A part that can be a word is regular. Its automaton has its characters as states (Glushkov, 1961). Cutting goes wrong
where a word could end, and what may come behind it begins with a character with which some word could go on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import or_

from .gbnf import Characters, Choice, Expression, Ranges, Repeat, Rule, Rules, Sequence

MOST_STATES = 1000  # of a word

Kinds = int  # of characters: a set with a bit for each


@dataclass(frozen=True, eq=False, slots=True)
class Word:
    """A part of a grammar that is cut out as a whole; breaking up `owner` makes smaller words of it."""

    part: Expression
    owner: Expression
    may_be_empty: bool


@dataclass(frozen=True, eq=False, slots=True)
class Shape:
    """A grammar over words: `kind` is that of the expression that it is made of, but for the words."""

    kind: Expression | Word
    inner: tuple["Shape", ...] = ()


def cut(rules: Rules) -> dict[str, Shape]:
    """The rules that "root" reaches, over words that are never cut wrongly."""
    broken: set[Expression] = set()
    while True:
        shapes = Cutter(rules, broken).shapes()
        wrong = Lexer(shapes, rules).wrongly_cut()
        if not wrong:
            return shapes
        broken |= wrong


class Cutter:
    """Makes words as large as can be, but for parts that are `broken` up."""

    def __init__(self, rules: Rules, broken: set[Expression]) -> None:
        self._rules, self._broken = rules, broken
        self._regular: dict[str, bool] = {}  # rules
        self._empty: dict[str, bool] = {}  # regular ones

    def shapes(self) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {}
        wanted = ["root"]
        while wanted:
            name = wanted.pop()
            if name not in shapes:
                shapes[name] = self._shape(self._rules[name])
                wanted += [each.kind.name for each in walk(shapes[name]) if isinstance(each.kind, Rule)]
        return shapes

    def _shape(self, part: Expression) -> Shape:
        if isinstance(part, Rule) and self._is_regular(part) and self._rules[part.name] in self._broken:
            return Shape(part)
        if self._is_regular(part) and part not in self._broken:
            owner = self._rules[part.name] if isinstance(part, Rule) else part
            return Shape(Word(part, owner, self._may_be_empty(part)))
        match part:
            case Sequence(parts) if part not in self._broken:
                return Shape(part, tuple(self._runs(part, parts)))
            case Sequence(parts) | Choice(parts):
                return Shape(part, tuple(map(self._shape, parts)))
            case Repeat(inner):
                return Shape(part, (self._shape(inner),))
        return Shape(part)

    def _runs(self, whole: Sequence, parts: tuple[Expression, ...]) -> Iterator[Shape]:
        """Neighbours that are regular make a word together."""
        for regular, run in groupby(parts, self._is_regular):
            if regular:
                together = Sequence(tuple(run))
                yield Shape(Word(together, whole, self._may_be_empty(together)))
            else:
                yield from map(self._shape, run)

    def _is_regular(self, part: Expression) -> bool:
        match part:
            case Rule(name):
                if name not in self._regular:
                    self._regular[name] = False  # as a rule is that comes back to itself
                    self._regular[name] = self._is_regular(self._rules[name])
                return self._regular[name]
            case Sequence(parts) | Choice(parts):
                return all(map(self._is_regular, parts))
            case Repeat(inner):
                return self._is_regular(inner)
        return True

    def _may_be_empty(self, part: Expression) -> bool:
        """Of a regular part."""
        match part:
            case Rule(name):
                if name not in self._empty:
                    self._empty[name] = self._may_be_empty(self._rules[name])
                return self._empty[name]
            case Sequence(parts):
                return all(map(self._may_be_empty, parts))
            case Choice(options):
                return any(map(self._may_be_empty, options))
            case Repeat(inner, least):
                return least == 0 or self._may_be_empty(inner)
        return False


def walk(shape: Shape) -> Iterator[Shape]:
    yield shape
    for inner in shape.inner:
        yield from walk(inner)


class TooLarge(Exception):
    """A word with more states than are worth looking at."""


class Automaton:
    """Of a regular part. Its states are the characters in it: `reads[state]` are those that lead there."""

    def __init__(self, part: Expression, rules: Rules, alphabet: "Alphabet") -> None:
        self._rules, self._alphabet = rules, alphabet
        self.reads: list[Kinds] = []
        self.behind: list[set[int]] = []  # the states that may come behind each
        self.first, self.last, _ = self._add(part)

    def _add(self, part: Expression) -> tuple[set[int], set[int], bool]:
        """The states that a part may begin and end with, and whether it may be empty."""
        match part:
            case Characters(ranges):
                if len(self.reads) == MOST_STATES:
                    raise TooLarge
                self.reads.append(self._alphabet.kinds(ranges))
                self.behind.append(set())
                return {len(self.reads) - 1}, {len(self.reads) - 1}, False
            case Rule(name):
                return self._add(self._rules[name])
            case Choice(options):
                firsts, lasts, empties = zip(*map(self._add, options), strict=True)
                return set().union(*firsts), set().union(*lasts), any(empties)
            case Sequence(parts):
                return self._add_sequence(parts)
            case Repeat(inner, least, most):
                first, last, empty = self._add(inner)
                if most != 1:  # how often exactly makes no difference to what may come behind what, but for less
                    self._join(last, first)
                return first, last, empty or least == 0

    def _add_sequence(self, parts: tuple[Expression, ...]) -> tuple[set[int], set[int], bool]:
        first, last, empty = set[int](), set[int](), True
        for part in parts:
            part_first, part_last, part_empty = self._add(part)
            self._join(last, part_first)
            first |= part_first if empty else set()
            last = part_last | (last if part_empty else set())
            empty = empty and part_empty
        return first, last, empty

    def _join(self, last: set[int], first: set[int]) -> None:
        for state in last:
            self.behind[state] |= first

    def goes_on_where(self, other: "Automaton", begins: Kinds) -> bool:
        """Is there a text of `other`, and a character out of `begins`, with which both together this one goes on?"""
        met = set[tuple[int, int]]()
        ahead = [(mine, theirs) for mine in self.first for theirs in other.first]
        while ahead:
            mine, theirs = pair = ahead.pop()
            if pair in met or not self.reads[mine] & other.reads[theirs]:
                continue
            met.add(pair)
            if theirs in other.last and any(self.reads[state] & begins for state in self.behind[mine]):
                return True
            ahead += [(one, another) for one in self.behind[mine] for another in other.behind[theirs]]
        return False


class Alphabet:
    """Divides characters into kinds that a grammar does not tell apart."""

    def __init__(self, rules: Rules) -> None:
        ranges = [each for part in map(characters, rules.values()) for each in part]
        self._edges = sorted({edge for low, high in ranges for edge in (low, high + 1)})

    def kinds(self, ranges: Ranges) -> Kinds:
        place = self._edges.index
        return sum((1 << place(high + 1)) - (1 << place(low)) for low, high in ranges)


def characters(part: Expression) -> Iterator[tuple[int, int]]:
    """All ranges of characters in an expression."""
    match part:
        case Characters(ranges):
            yield from ranges
        case Sequence(parts) | Choice(parts):
            for inner in parts:
                yield from characters(inner)
        case Repeat(inner):
            yield from characters(inner)


class Lexer:
    """Finds words that a greedy lexer would make longer than the grammar wants them."""

    def __init__(self, shapes: dict[str, Shape], rules: Rules) -> None:
        self._shapes = shapes
        self._automata: dict[Shape, Automaton] = {}
        self.too_large: set[Expression] = set()
        alphabet = Alphabet(rules)
        for shape in (each for root in shapes.values() for each in walk(root)):
            if isinstance(shape.kind, Word):
                try:
                    self._automata[shape] = Automaton(shape.kind.part, rules, alphabet)
                except TooLarge:
                    self.too_large.add(shape.kind.owner)

    def wrongly_cut(self) -> set[Expression]:
        """The owners of such words."""
        if self.too_large:
            return self.too_large
        follow = self._follow()
        return {
            word.kind.owner
            for word, automaton in self._automata.items()
            if isinstance(word.kind, Word)
            and any(automaton.goes_on_where(other, follow[short]) for short, other in self._automata.items())
        }

    # --- which characters may come behind a word ---

    def _follow(self) -> dict[Shape, Kinds]:
        begin: dict[str, tuple[Kinds, bool]] = dict.fromkeys(self._shapes, (0, False))
        while (grown := {name: self._begin(shape, begin) for name, shape in self._shapes.items()}) != begin:
            begin = grown
        behind_rules = dict.fromkeys(self._shapes, 0)
        while True:
            behind_words, before = dict.fromkeys(self._automata, 0), dict(behind_rules)
            for name, shape in self._shapes.items():
                self._spread(shape, before[name], begin, behind_words, behind_rules)
            if behind_rules == before:
                return behind_words

    def _begin(self, shape: Shape, rules: dict[str, tuple[Kinds, bool]]) -> tuple[Kinds, bool]:
        """The characters that it may begin with, and whether it may be empty."""
        if isinstance(shape.kind, Word):
            automaton = self._automata[shape]
            return union(automaton.reads[state] for state in automaton.first), shape.kind.may_be_empty
        inner = [self._begin(each, rules) for each in shape.inner]
        match shape.kind:
            case Rule(name):
                return rules[name]
            case Choice():
                return union(kinds for kinds, _ in inner), any(empty for _, empty in inner)
            case Repeat(_, least):
                return inner[0][0], inner[0][1] or least == 0
        kinds = 0
        for each, empty in inner:
            kinds |= each
            if not empty:
                return kinds, False
        return kinds, True

    def _spread(
        self,
        shape: Shape,
        behind: Kinds,
        begin: dict[str, tuple[Kinds, bool]],
        behind_words: dict[Shape, Kinds],
        behind_rules: dict[str, Kinds],
    ) -> None:
        """Tell the words and rules in a shape what may come behind them, if `behind` may come behind it."""
        match shape.kind:
            case Word():
                behind_words[shape] |= behind
            case Rule(name):
                behind_rules[name] |= behind
            case Repeat(_, _, most) if most != 1:
                behind |= self._begin(shape.inner[0], begin)[0]
        for each in reversed(shape.inner):
            self._spread(each, behind, begin, behind_words, behind_rules)
            if isinstance(shape.kind, Sequence):
                kinds, empty = self._begin(each, begin)
                behind = kinds | (behind if empty else 0)


def union(sets: Iterable[Kinds]) -> Kinds:
    return reduce(or_, sets, 0)
