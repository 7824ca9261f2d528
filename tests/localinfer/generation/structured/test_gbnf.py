"""GBNF: the parser, and terminals that do not change a grammar's language."""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from constraints import BYTE_TRIE, allowed_by_llama_cpp, matcher_of

from localinfer.errors import ConstraintError
from localinfer.generation.structured.constraint_spec import gbnf_to_grammar
from localinfer.generation.structured.gbnf import (
    MAX_CODE_POINT,
    Characters,
    Choice,
    Repeat,
    Rule,
    Rules,
    Sequence,
    parse_gbnf,
)
from localinfer.generation.structured.terminals import Terminal, extract_terminals, walk


def accepts(grammar: str, text: str) -> bool:
    matcher = matcher_of(gbnf_to_grammar(grammar, "--grammar"))
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


# --- parser ---


@pytest.mark.parametrize(("written", "ranges"), [
    ("[a-c]", ((97, 99),)), ("[^a-c]", ((0, 96), (100, MAX_CODE_POINT))),
    ("[abc]", ((97, 99),)), (".", ((0, MAX_CODE_POINT),)),
    ("[-+*/]", ((42, 43), (45, 45), (47, 47))), ("[+-]", ((43, 43), (45, 45))), (r"[\]\\]", ((92, 93),)),
    (r"[\x41-\u005a]", ((65, 90),)), (r"[\U0001F600]", ((0x1F600, 0x1F600),)), ("[ä]", ((228, 228),)),
    (r'["\n#]', ((10, 10), (34, 35))),
])  # fmt: skip
def test_character_sets(written: str, ranges: tuple[tuple[int, int], ...]) -> None:
    root = parse_gbnf(f"root ::= {written} # a set\n", "--grammar")["root"]
    assert isinstance(root, Characters)
    assert root.ranges == ranges


@pytest.mark.parametrize(("grammar", "problem"), [
    ("", "there is no rule root"),
    ("# nothing", "there is no rule root"),
    ("start ::= \"a\"", "there is no rule root"),
    ("root ::= a", "line 1: a: there is no rule a"),
    ("root ::= (\"a\" | ", "line 1: the end: expected )"),
    ("root ::= \"a\n", "line 1: \"a\\n: syntax error"),
    ("root ::= [a", "line 1: [a: syntax error"),
    ("root ::= \"\\q\"", "line 1: \"\\q\": unknown escape sequence \\q"),
    ("root ::=\n  \"a\"{,}", "line 2: {,}: syntax error"),
    ("root ::= \"a\"{5000}", "line 1: {5000}: too many repetitions (limit 2000)"),
    ("root ::= \"a\"{3,2}", "line 1: {3,2}: the minimum exceeds the maximum"),
    ("root ::= <think>", "line 1: <think>: syntax error"),
    ("root ::= [b-a]", "line 1: [b-a]: empty character set"),
    ("root ::= * \"a\"", "line 1: *: expected the name of a rule and ::="),
    ("\"a\"", "line 1: \"a\": expected the name of a rule and ::="),
    ("root ::= " + "(" * 60_000, "nested too deeply"),
])  # fmt: skip
def test_invalid_grammar_error_names_the_line(grammar: str, problem: str) -> None:
    with pytest.raises(ConstraintError) as error:
        gbnf_to_grammar(grammar, "--grammar")
    assert str(error.value) == f"--grammar: {problem}"
    assert error.value.exit_code == 6


def test_long_rule_chain_is_too_deep() -> None:
    rules = [f"r{n} ::= r{n + 1}" for n in range(5000)]
    with pytest.raises(ConstraintError, match="nested too deeply"):
        gbnf_to_grammar("\n".join(["root ::= r0", *rules, 'r5000 ::= "a"']), "--grammar")


def test_exponentially_growing_rules() -> None:
    """The expanded terminal has a million characters."""
    rules = [f"r{n} ::= r{n + 1} r{n + 1}" for n in range(20)]
    matcher = matcher_of(gbnf_to_grammar("\n".join(["root ::= r0", *rules, 'r20 ::= "a"']), "--grammar"))
    assert matcher.try_consume_tokens(list(b"a" * 50)) == 50
    assert matcher.try_consume_tokens(list(b"b")) == 0


@pytest.mark.parametrize(("grammar", "good", "bad"), [
    ('root ::= [a-z]+ "e"', ["note", "e" * 9], ["e", "not", "note "]),
    ('root ::= "abc" | [a-z] [a-z] "x" | "(" root ")"', ["abc", "abx", "((abx))"], ["ab", "(abx", "abcx"]),
    (r'root ::= "\u00e4" . [^\n]{2,3}', ["ä\nxy", "äaxyz"], ["ä\nx", "ä\nx\n"]),
    ('root ::= "a"{2} "b"{0,2} "c"{1,} "d"{0}', ["aac", "aabbcc"], ["aabbbc", "aab", "aacd"]),
    ('root ::= pair ("," pair)*\n\npair ::= # two\n  key\n  "=" [0-9]\nkey ::= [a-z_]+', ["a=1,b_c=2"], ["a=", "A=1"]),
    ('root ::= ""', [""], ["a"]),
    ('root ::= "/" ["\\\\/]*', ["/", '/"\\/'], ["//a"]),
    ("%llguidance {}\nstart: /[0-9]+/", ["42"], ["x"]),
])  # fmt: skip
def test_grammars_accept_only_matching_texts(grammar: str, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


# --- terminals ---


def test_regular_grammar_is_one_terminal() -> None:
    shape = extract_terminals(parse_gbnf('root ::= "a" item+ "z"\nitem ::= [a-z] | "é"\n', "--grammar"))["root"]
    assert isinstance(shape.kind, Terminal)


def test_terminals_are_as_large_as_possible() -> None:
    """JSON's strings and numbers are terminals, although its objects are not regular."""
    json = r"""
    root ::= value
    value ::= object | string | number
    object ::= "{" (string ":" value ("," string ":" value)*)? "}"
    string ::= "\"" [^"]* "\""
    number ::= [0-9]+
    """
    shapes = extract_terminals(parse_gbnf(json, "--grammar"))
    terminals = [each.kind for shape in shapes.values() for each in walk(shape) if isinstance(each.kind, Terminal)]
    assert len(terminals) < 12


class ReferenceMatcher:
    """A matcher that evaluates the expressions directly, for rules without left recursion."""

    def __init__(self, rules: Rules, text: str) -> None:
        self.rules, self.text = rules, text
        self.ends = cache(self.ends)  # type: ignore[method-assign]

    def ends(self, expression: Any, start: int) -> frozenset[int]:
        match expression:
            case Characters(ranges):
                char = ord(self.text[start]) if start < len(self.text) else -1
                return frozenset({start + 1} if any(low <= char <= high for low, high in ranges) else ())
            case Rule(name):
                return self.ends(self.rules[name], start)
            case Choice(options):
                return frozenset(end for option in options for end in self.ends(option, start))
            case Sequence(parts):
                positions = {start}
                for each in parts:
                    positions = {end for position in positions for end in self.ends(each, position)}
                return frozenset(positions)
            case Repeat(inner, least, most):
                actual, positions = set(), {start}
                for n in range(len(self.text) + 2 if most is None else most + 1):
                    actual |= positions if n >= least else set()
                    positions = {end for position in positions for end in self.ends(inner, position)}
                return frozenset(actual)
        raise AssertionError(expression)


def random_grammar(random: np.random.Generator) -> str:
    """Return rules over a, b and c. One rule is recursive, so the grammar is not a single terminal."""

    def expression(depth: int) -> str:
        kind = random.integers(0, 7 if depth else 3)
        if kind <= 1:
            return str(random.choice(['"a"', '"b"', '"c"', "[ab]", "[^a]", '"ab"', '"abc"', '"ca"']))
        if kind == 2:
            return str(random.choice(["one", "two"]))
        if kind == 3:
            return f"({expression(depth - 1)} | {expression(depth - 1)})"
        if kind == 4:
            return f"({expression(depth - 1)}){random.choice(['*', '+', '?', '{2}', '{0,2}'])}"
        return f"{expression(depth - 1)} {expression(depth - 1)}"

    simple = expression(2).replace("one", '"a"').replace("two", '"b"')
    root, one = f"{expression(2)} one {expression(2)}", f'"a" {expression(2)} one? {expression(1)} | "c"'
    return f"root ::= {root}\none ::= {one}\ntwo ::= {simple}\n"


def all_texts(max_length: int) -> Iterator[str]:
    for n in range(max_length + 1):
        yield from map("".join, itertools.product("abc", repeat=n))


@pytest.mark.parametrize("seed", range(40))
def test_random_grammars_match_the_reference(seed: int) -> None:
    grammar = random_grammar(np.random.default_rng(seed))
    rules = parse_gbnf(grammar, "--grammar")
    matcher = matcher_of(gbnf_to_grammar(grammar, "--grammar"))
    for text in all_texts(5):
        expected = len(text) in ReferenceMatcher(rules, text).ends(rules["root"], 0)
        matcher.reset()
        n_consumed = matcher.try_consume_tokens(list(text.encode()))
        assert (n_consumed == len(text) and matcher.is_accepting()) == expected, (grammar, text)


# --- llama.cpp ---


@pytest.mark.parametrize(("grammar", "text"), [
    (r"""
    root ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}"
    value ::= root | string | [0-9]+
    string ::= "\"" [^"]* "\""
    ws ::= [ \n]*
    """, '{"name": "A short", "a": {"b":\n 12}}'),
    ('root ::= (expr "=" term "\\n")+\nexpr ::= term ([-+*/] term)*\nterm ::= [a-z]+ | [0-9]+ | "(" expr ")"',
     "a+3*(b-2)=7\n"),
    ('root ::= item "a"\nitem ::= [a-z]+', "fooa"),
    ('root ::= ("a" | "ab") ("c" | "bc") root?', "abcabc"),
])  # fmt: skip
def test_llama_cpp_allows_the_same_tokens(smollm2: Any, grammar: str, text: str) -> None:
    """Compare only tokens of whole characters, because llama.cpp allows control tokens by their names."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is installed for benchmarks only")
    for mask, reference, plain in allowed_by_llama_cpp(smollm2, grammar, text):
        assert np.flatnonzero((mask != reference) & plain).tolist() == []


def test_byte_vocabulary_size() -> None:
    assert BYTE_TRIE.vocab_size == 257
