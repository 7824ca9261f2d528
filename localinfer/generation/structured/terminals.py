"""Extraction of terminals: the expressions of a GBNF grammar that can be terminals of a greedy lexer.

llguidance splits a text into terminals, each as long as possible, and then parses the terminals. GBNF has no terminals:
"note" matches `[a-z]+ "e"`, but a lexer with `[a-z]+` as a terminal would consume all of it. So an expression becomes a
terminal only if no text exists that the lexer would split in another way; otherwise it is split up. In the worst case
terminals are single characters, which is always correct, but slow.

An expression that can be a terminal is regular. The states of its automaton are its characters (Glushkov, 1961). A
conflict exists if a character that may follow the end of a terminal could also continue some terminal.
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

    expression: Expression
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

    def _node(self, expression: Expression) -> Node:
        if (
            isinstance(expression, Rule)
            and self._is_regular(expression)
            and self._rules[expression.name] in self._broken
        ):
            return Node(expression)
        if self._is_regular(expression) and expression not in self._broken:
            owner = self._rules[expression.name] if isinstance(expression, Rule) else expression
            return Node(Terminal(expression, owner, self._is_nullable(expression)))
        match expression:
            case Sequence(elements) if expression not in self._broken:
                return Node(expression, tuple(self._merge_regular(expression, elements)))
            case Sequence(elements) | Choice(elements):
                return Node(expression, tuple(map(self._node, elements)))
            case Repeat(inner):
                return Node(expression, (self._node(inner),))
        return Node(expression)

    def _merge_regular(self, sequence: Sequence, elements: tuple[Expression, ...]) -> Iterator[Node]:
        """Yield nodes for the elements of a sequence. Adjacent regular elements become one terminal."""
        for regular, run in groupby(elements, self._is_regular):
            if regular:
                merged = Sequence(tuple(run))
                yield Node(Terminal(merged, sequence, self._is_nullable(merged)))
            else:
                yield from map(self._node, run)

    def _is_regular(self, expression: Expression) -> bool:
        match expression:
            case Rule(name):
                if name not in self._regular:
                    self._regular[name] = False  # recursive rules are not regular
                    self._regular[name] = self._is_regular(self._rules[name])
                return self._regular[name]
            case Sequence(elements) | Choice(elements):
                return all(map(self._is_regular, elements))
            case Repeat(inner):
                return self._is_regular(inner)
        return True

    def _is_nullable(self, expression: Expression) -> bool:
        """Return whether a regular expression matches the empty text."""
        match expression:
            case Rule(name):
                if name not in self._nullable:
                    self._nullable[name] = self._is_nullable(self._rules[name])
                return self._nullable[name]
            case Sequence(elements):
                return all(map(self._is_nullable, elements))
            case Choice(options):
                return any(map(self._is_nullable, options))
            case Repeat(inner, min_count):
                return min_count == 0 or self._is_nullable(inner)
        return False


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from walk(child)


class AutomatonTooLargeError(Exception):
    """Raised for a terminal with more than MAX_STATES states."""


class Automaton:
    """The Glushkov automaton of a regular expression. Its states are characters: `characters[state]` are those that
    lead to it.
    """

    def __init__(self, expression: Expression, rules: Rules, alphabet: "Alphabet") -> None:
        self._rules, self._alphabet = rules, alphabet
        self.characters: list[CharacterClasses] = []
        self.follow: list[set[int]] = []  # the next states of each state
        self.first, self.last, _ = self._add(expression)

    def _add(self, expression: Expression) -> tuple[set[int], set[int], bool]:
        """Add an expression. Return its first and last states, and whether it is nullable."""
        match expression:
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
            case Sequence(elements):
                return self._add_sequence(elements)
            case Repeat(inner, min_count, max_count):
                first, last, empty = self._add(inner)
                if max_count != 1:  # the exact count does not change which states may follow
                    self._join(last, first)
                return first, last, empty or min_count == 0

    def _add_sequence(self, elements: tuple[Expression, ...]) -> tuple[set[int], set[int], bool]:
        first, last, empty = set[int](), set[int](), True
        for element in elements:
            element_first, element_last, element_empty = self._add(element)
            self._join(last, element_first)
            first |= element_first if empty else set()
            last = element_last | (last if element_empty else set())
            empty = empty and element_empty
        return first, last, empty

    def _join(self, last: set[int], first: set[int]) -> None:
        for state in last:
            self.follow[state] |= first

    def conflicts_with(self, other: "Automaton", begins: CharacterClasses) -> bool:
        """Return whether a text of `other`, followed by a character of `begins`, can be a proper prefix of a text of
        this automaton.
        """
        visited = set[tuple[int, int]]()
        pending = [(own_state, other_state) for own_state in self.first for other_state in other.first]
        while pending:
            own_state, other_state = pair = pending.pop()
            if pair in visited or not self.characters[own_state] & other.characters[other_state]:
                continue
            visited.add(pair)
            if other_state in other.last and any(self.characters[state] & begins for state in self.follow[own_state]):
                return True
            pending += [
                (next_own, next_other)
                for next_own in self.follow[own_state]
                for next_other in other.follow[other_state]
            ]
        return False


class Alphabet:
    """A partition of the characters into classes that the grammar does not distinguish."""

    def __init__(self, rules: Rules) -> None:
        ranges = [limits for expression_ranges in map(character_ranges, rules.values()) for limits in expression_ranges]
        self._edges = sorted({edge for low, high in ranges for edge in (low, high + 1)})

    def classes(self, ranges: Ranges) -> CharacterClasses:
        """Return the classes in these ranges."""
        index = self._edges.index
        return sum((1 << index(high + 1)) - (1 << index(low)) for low, high in ranges)


def character_ranges(expression: Expression) -> Iterator[tuple[int, int]]:
    """Yield all character ranges of an expression."""
    match expression:
        case Characters(ranges):
            yield from ranges
        case Sequence(elements) | Choice(elements):
            for inner in elements:
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
                    self._automata[node] = Automaton(node.kind.expression, rules, alphabet)
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
            and any(
                automaton.conflicts_with(other_automaton, follow[other_terminal])
                for other_terminal, other_automaton in self._automata.items()
            )
        }

    # --- FOLLOW sets of terminals ---

    def _follow(self) -> dict[Node, CharacterClasses]:
        begin: dict[str, tuple[CharacterClasses, bool]] = dict.fromkeys(self._nodes, (0, False))
        while (updated := {name: self._first(node, begin) for name, node in self._nodes.items()}) != begin:
            begin = updated
        follow_rules = dict.fromkeys(self._nodes, 0)
        while True:
            follow_terminals, previous = dict.fromkeys(self._automata, 0), dict(follow_rules)
            for name, node in self._nodes.items():
                self._propagate(node, previous[name], begin, follow_terminals, follow_rules)
            if follow_rules == previous:
                return follow_terminals

    def _first(self, node: Node, rules: dict[str, tuple[CharacterClasses, bool]]) -> tuple[CharacterClasses, bool]:
        """Return the characters that a node may begin with (its FIRST set), and whether it is nullable."""
        if isinstance(node.kind, Terminal):
            automaton = self._automata[node]
            return union(automaton.characters[state] for state in automaton.first), node.kind.is_nullable
        children = [self._first(each, rules) for each in node.children]
        match node.kind:
            case Rule(name):
                return rules[name]
            case Choice():
                return union(classes for classes, _ in children), any(empty for _, empty in children)
            case Repeat(_, min_count):
                return children[0][0], children[0][1] or min_count == 0
        classes = 0
        for each, empty in children:
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
            case Repeat(_, _, max_count) if max_count != 1:
                following |= self._first(node.children[0], begin)[0]
        for each in reversed(node.children):
            self._propagate(each, following, begin, follow_terminals, follow_rules)
            if isinstance(node.kind, Sequence):
                classes, empty = self._first(each, begin)
                following = classes | (following if empty else 0)


def union(sets: Iterable[CharacterClasses]) -> CharacterClasses:
    return reduce(or_, sets, 0)
