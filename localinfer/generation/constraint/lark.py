"""GBNF in llguidance's own language, a kind of Lark."""

from localinfer.errors import BadForm

from .gbnf import Characters, Choice, Expression, Repeat, Rule, Rules, Sequence, read_gbnf
from .words import Shape, Word, cut

NOT_EMPTY = "/(?s:.+)/"


def lark_of(text: str, flag: str) -> str:
    """BadForm names the flag, the line and what is wrong there."""
    try:
        rules = read_gbnf(text, flag)
        return Writer(rules).text(cut(rules))
    except RecursionError:
        raise BadForm(f"{flag}: nested too deeply") from None


class Writer:
    """Names words W1, W2, ... and rules r1, r2, ...: Lark tells them apart by their first letters."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._names: dict[str, str] = {"root": "start"}
        self._words: dict[str, str] = {}

    def text(self, shapes: dict[str, Shape]) -> str:
        rules = [f"{self._name(name)}: {self._lark(shape)}" for name, shape in shapes.items()]
        words = [f"{name}: {regex}" for regex, name in self._words.items()]
        return "\n".join(["%llguidance {}", *rules, *words, ""])

    def _name(self, rule: str) -> str:
        return self._names.setdefault(rule, f"r{len(self._names)}")

    def _lark(self, shape: Shape) -> str:
        inner = [self._lark(each) for each in shape.inner]
        match shape.kind:
            case Word(part, _, may_be_empty):
                regex = f"/{self._regex(part)}/"
                if not may_be_empty:
                    return self._words.setdefault(regex, f"W{len(self._words)}")
                return self._words.setdefault(f"{regex} & {NOT_EMPTY}", f"W{len(self._words)}") + "?"
            case Rule(name):
                return self._name(name)
            case Choice():
                return f"({' | '.join(inner)})"
            case Repeat(_, least, most):
                return f"({inner[0]}){times(least, most)}"
        return f"({' '.join(inner)})" if inner else '""'

    def _regex(self, part: Expression) -> str:
        match part:
            case Characters(ranges):
                return f"[{''.join(map(spelled, ranges))}]"
            case Rule(name):
                return self._regex(self._rules[name])
            case Choice(options):
                return f"(?:{'|'.join(map(self._regex, options))})"
            case Repeat(inner, least, most):
                return f"(?:{self._regex(inner)}){times(least, most)}"
            case Sequence(parts):
                return "".join(map(self._regex, parts))


def spelled(characters: tuple[int, int]) -> str:
    low, high = (rf"\x{{{code:x}}}" for code in characters)
    return low if low == high else f"{low}-{high}"


def times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"
