"""Extraction of terminals: the parts of a GBNF grammar that can be terminals of a greedy lexer.

llguidance splits a text into terminals, each as long as possible, and then parses the terminals. GBNF has no terminals:
"note" matches `[a-z]+ "e"`, but a lexer with `[a-z]+` as a terminal would consume all of it. So a part becomes a
terminal only if no text exists that the lexer would split in another way; otherwise the part is split up. In the worst
case terminals are single characters, which is always correct, but slow.

A part that can be a terminal is regular. The states of its automaton are its characters (Glushkov, 1961). A conflict
exists if a character that may follow the end of a terminal could also continue some terminal.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import or_

from .gbnf import Characters, Choice, Expression, Ranges, Repeat, Rule, Rules, Sequence

MAX_STATES = 1000  # maximum number of states of an automaton

CharacterClasses = int  # a bit set of character classes


@dataclass(frozen=True, eq=False, slots=True)
class Terminal:
    """A terminal. Splitting up `owner` makes smaller terminals of it."""

    part: Expression
    owner: Expression
    is_nullable: bool


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A node of the grammar over terminals. `kind` is the expression that it stands for, or a terminal."""

    kind: Expression | Terminal
    children: tuple["Node", ...] = ()


def extract_terminals(rules: Rules) -> dict[str, Node]:
    """Return the rules that "root" reaches, over terminals without conflicts."""
    broken: set[Expression] = set()
    while True:
        nodes = TerminalExtractor(rules, broken).nodes()
        conflicting = LexerAnalysis(nodes, rules).conflicting_owners()
        if not conflicting:
            return nodes
        broken |= conflicting


class TerminalExtractor:
    """An extractor of terminals that are as large as possible, except for the expressions in `broken`, which it splits
    up."""

    def __init__(self, rules: Rules, broken: set[Expression]) -> None:
        self._rules, self._broken = rules, broken
        self._regular: dict[str, bool] = {}  # rule -> whether it is regular
        self._nullable: dict[str, bool] = {}  # regular rule -> whether it is nullable

    def nodes(self) -> dict[str, Node]:
        """Return the nodes of all rules that "root" reaches."""
        nodes: dict[str, Node] = {}
        pending = ["root"]
        while pending:
            name = pending.pop()
            if name not in nodes:
                nodes[name] = self._node(self._rules[name])
                pending += [each.kind.name for each in walk(nodes[name]) if isinstance(each.kind, Rule)]
        return nodes

    def _node(self, part: Expression) -> Node:
        if isinstance(part, Rule) and self._is_regular(part) and self._rules[part.name] in self._broken:
            return Node(part)
        if self._is_regular(part) and part not in self._broken:
            owner = self._rules[part.name] if isinstance(part, Rule) else part
            return Node(Terminal(part, owner, self._is_nullable(part)))
        match part:
            case Sequence(parts) if part not in self._broken:
                return Node(part, tuple(self._merge_regular(part, parts)))
            case Sequence(parts) | Choice(parts):
                return Node(part, tuple(map(self._node, parts)))
            case Repeat(inner):
                return Node(part, (self._node(inner),))
        return Node(part)

    def _merge_regular(self, whole: Sequence, parts: tuple[Expression, ...]) -> Iterator[Node]:
        """Yield nodes for the parts of a sequence. Adjacent regular parts become one terminal."""
        for regular, run in groupby(parts, self._is_regular):
            if regular:
                together = Sequence(tuple(run))
                yield Node(Terminal(together, whole, self._is_nullable(together)))
            else:
                yield from map(self._node, run)

    def _is_regular(self, part: Expression) -> bool:
        match part:
            case Rule(name):
                if name not in self._regular:
                    self._regular[name] = False  # recursive rules are not regular
                    self._regular[name] = self._is_regular(self._rules[name])
                return self._regular[name]
            case Sequence(parts) | Choice(parts):
                return all(map(self._is_regular, parts))
            case Repeat(inner):
                return self._is_regular(inner)
        return True

    def _is_nullable(self, part: Expression) -> bool:
        """Whether a regular part matches the empty text."""
        match part:
            case Rule(name):
                if name not in self._nullable:
                    self._nullable[name] = self._is_nullable(self._rules[name])
                return self._nullable[name]
            case Sequence(parts):
                return all(map(self._is_nullable, parts))
            case Choice(options):
                return any(map(self._is_nullable, options))
            case Repeat(inner, least):
                return least == 0 or self._is_nullable(inner)
        return False


def walk(node: Node) -> Iterator[Node]:
    yield node
    for inner in node.children:
        yield from walk(inner)


class AutomatonTooLargeError(Exception):
    """Raised for a terminal with more than MAX_STATES states."""


class Automaton:
    """The Glushkov automaton of a regular part. Its states are characters: `characters[state]` are those that lead to
    it."""

    def __init__(self, part: Expression, rules: Rules, alphabet: "Alphabet") -> None:
        self._rules, self._alphabet = rules, alphabet
        self.characters: list[CharacterClasses] = []
        self.follow: list[set[int]] = []  # the next states of each state
        self.first, self.last, _ = self._add(part)

    def _add(self, part: Expression) -> tuple[set[int], set[int], bool]:
        """Add a part. Return its first and last states, and whether it is nullable."""
        match part:
            case Characters(ranges):
                if len(self.characters) == MAX_STATES:
                    raise AutomatonTooLargeError
                self.characters.append(self._alphabet.classes(ranges))
                self.follow.append(set())
                return {len(self.characters) - 1}, {len(self.characters) - 1}, False
            case Rule(name):
                return self._add(self._rules[name])
            case Choice(options):
                firsts, lasts, empties = zip(*map(self._add, options), strict=True)
                return set().union(*firsts), set().union(*lasts), any(empties)
            case Sequence(parts):
                return self._add_sequence(parts)
            case Repeat(inner, least, most):
                first, last, empty = self._add(inner)
                if most != 1:  # the exact count does not change which states may follow
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
            self.follow[state] |= first

    def conflicts_with(self, other: "Automaton", begins: CharacterClasses) -> bool:
        """Whether a text of `other`, followed by a character of `begins`, can be a proper prefix of a text of this
        automaton."""
        visited = set[tuple[int, int]]()
        pending = [(mine, theirs) for mine in self.first for theirs in other.first]
        while pending:
            mine, theirs = pair = pending.pop()
            if pair in visited or not self.characters[mine] & other.characters[theirs]:
                continue
            visited.add(pair)
            if theirs in other.last and any(self.characters[state] & begins for state in self.follow[mine]):
                return True
            pending += [(one, another) for one in self.follow[mine] for another in other.follow[theirs]]
        return False


class Alphabet:
    """A partition of the characters into classes that the grammar does not distinguish."""

    def __init__(self, rules: Rules) -> None:
        ranges = [each for part in map(character_ranges, rules.values()) for each in part]
        self._edges = sorted({edge for low, high in ranges for edge in (low, high + 1)})

    def classes(self, ranges: Ranges) -> CharacterClasses:
        """Return the classes in these ranges."""
        index = self._edges.index
        return sum((1 << index(high + 1)) - (1 << index(low)) for low, high in ranges)


def character_ranges(part: Expression) -> Iterator[tuple[int, int]]:
    """Yield all character ranges of an expression."""
    match part:
        case Characters(ranges):
            yield from ranges
        case Sequence(parts) | Choice(parts):
            for inner in parts:
                yield from character_ranges(inner)
        case Repeat(inner):
            yield from character_ranges(inner)


class LexerAnalysis:
    """An analysis that finds terminals whose greedy matches would be longer than the grammar allows."""

    def __init__(self, nodes: dict[str, Node], rules: Rules) -> None:
        self._nodes = nodes
        self._automata: dict[Node, Automaton] = {}
        self.too_large: set[Expression] = set()
        alphabet = Alphabet(rules)
        for node in (each for root in nodes.values() for each in walk(root)):
            if isinstance(node.kind, Terminal):
                try:
                    self._automata[node] = Automaton(node.kind.part, rules, alphabet)
                except AutomatonTooLargeError:
                    self.too_large.add(node.kind.owner)

    def conflicting_owners(self) -> set[Expression]:
        """Return the owners of terminals with conflicts."""
        if self.too_large:
            return self.too_large
        follow = self._follow()
        return {
            terminal.kind.owner
            for terminal, automaton in self._automata.items()
            if isinstance(terminal.kind, Terminal)
            and any(automaton.conflicts_with(other, follow[short]) for short, other in self._automata.items())
        }

    # --- FOLLOW sets of terminals ---

    def _follow(self) -> dict[Node, CharacterClasses]:
        begin: dict[str, tuple[CharacterClasses, bool]] = dict.fromkeys(self._nodes, (0, False))
        while (grown := {name: self._first(node, begin) for name, node in self._nodes.items()}) != begin:
            begin = grown
        follow_rules = dict.fromkeys(self._nodes, 0)
        while True:
            follow_terminals, before = dict.fromkeys(self._automata, 0), dict(follow_rules)
            for name, node in self._nodes.items():
                self._propagate(node, before[name], begin, follow_terminals, follow_rules)
            if follow_rules == before:
                return follow_terminals

    def _first(self, node: Node, rules: dict[str, tuple[CharacterClasses, bool]]) -> tuple[CharacterClasses, bool]:
        """Return the characters that a node may begin with (its FIRST set), and whether it is nullable."""
        if isinstance(node.kind, Terminal):
            automaton = self._automata[node]
            return union(automaton.characters[state] for state in automaton.first), node.kind.is_nullable
        inner = [self._first(each, rules) for each in node.children]
        match node.kind:
            case Rule(name):
                return rules[name]
            case Choice():
                return union(classes for classes, _ in inner), any(empty for _, empty in inner)
            case Repeat(_, least):
                return inner[0][0], inner[0][1] or least == 0
        classes = 0
        for each, empty in inner:
            classes |= each
            if not empty:
                return classes, False
        return classes, True

    def _propagate(
        self,
        node: Node,
        following: CharacterClasses,
        begin: dict[str, tuple[CharacterClasses, bool]],
        follow_terminals: dict[Node, CharacterClasses],
        follow_rules: dict[str, CharacterClasses],
    ) -> None:
        """Add `following`, the FOLLOW set of a node, to those of the terminals and rules in it."""
        match node.kind:
            case Terminal():
                follow_terminals[node] |= following
            case Rule(name):
                follow_rules[name] |= following
            case Repeat(_, _, most) if most != 1:
                following |= self._first(node.children[0], begin)[0]
        for each in reversed(node.children):
            self._propagate(each, following, begin, follow_terminals, follow_rules)
            if isinstance(node.kind, Sequence):
                classes, empty = self._first(each, begin)
                following = classes | (following if empty else 0)


def union(sets: Iterable[CharacterClasses]) -> CharacterClasses:
    return reduce(or_, sets, 0)
