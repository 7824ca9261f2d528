"""Conversion of GBNF grammars to llguidance's variant of Lark."""

from localinfer.errors import ConstraintError

from .gbnf import Characters, Choice, Expression, Repeat, Rule, Rules, Sequence, parse_gbnf
from .terminals import Node, Terminal, extract_terminals

NOT_EMPTY = "/(?s:.+)/"


def gbnf_to_lark(text: str, flag: str) -> str:
    """Convert a GBNF grammar. Raises ConstraintError with the flag, the line and the problem."""
    try:
        rules = parse_gbnf(text, flag)
        return LarkWriter(rules).text(extract_terminals(rules))
    except RecursionError:
        raise ConstraintError(f"{flag}: nested too deeply") from None


class LarkWriter:
    """A writer of Lark grammars. Terminals are W1, W2, ... and rules r1, r2, ...: the case
    distinguishes them in Lark."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._names: dict[str, str] = {"root": "start"}
        self._terminals: dict[str, str] = {}

    def text(self, nodes: dict[str, Node]) -> str:
        rules = [f"{self._name(name)}: {self._lark(node)}" for name, node in nodes.items()]
        terminals = [f"{name}: {regex}" for regex, name in self._terminals.items()]
        return "\n".join(["%llguidance {}", *rules, *terminals, ""])

    def _name(self, rule: str) -> str:
        return self._names.setdefault(rule, f"r{len(self._names)}")

    def _lark(self, node: Node) -> str:
        children = [self._lark(each) for each in node.children]
        match node.kind:
            case Terminal(expression, _, is_nullable):
                regex = f"/{self._regex(expression)}/"
                if not is_nullable:
                    return self._terminals.setdefault(regex, f"W{len(self._terminals)}")
                return self._terminals.setdefault(f"{regex} & {NOT_EMPTY}", f"W{len(self._terminals)}") + "?"
            case Rule(name):
                return self._name(name)
            case Choice():
                return f"({' | '.join(children)})"
            case Repeat(_, min_count, max_count):
                return f"({children[0]}){repetition(min_count, max_count)}"
        return f"({' '.join(children)})" if children else '""'

    def _regex(self, expression: Expression) -> str:
        match expression:
            case Characters(ranges):
                return f"[{''.join(map(regex_range, ranges))}]"
            case Rule(name):
                return self._regex(self._rules[name])
            case Choice(options):
                return f"(?:{'|'.join(map(self._regex, options))})"
            case Repeat(inner, min_count, max_count):
                return f"(?:{self._regex(inner)}){repetition(min_count, max_count)}"
            case Sequence(elements):
                return "".join(map(self._regex, elements))


def regex_range(characters: tuple[int, int]) -> str:
    low, high = (rf"\x{{{code:x}}}" for code in characters)
    return low if low == high else f"{low}-{high}"


def repetition(min_count: int, max_count: int | None) -> str:
    return f"{{{min_count},{'' if max_count is None else max_count}}}"
