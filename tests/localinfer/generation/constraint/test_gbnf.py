"""GBNF: how it is read, and that its words change nothing of what a grammar means."""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from constraints import BYTES, allowed_by_llama_cpp, matcher_of

from localinfer.errors import BadForm
from localinfer.generation.constraint.form import grammar_of_gbnf
from localinfer.generation.constraint.gbnf import LAST, Characters, Choice, Repeat, Rule, Rules, Sequence, read_gbnf
from localinfer.generation.constraint.words import Word, cut, walk


def accepts(grammar: str, text: str) -> bool:
    matcher = matcher_of(grammar_of_gbnf(grammar, "--grammar"))
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


# --- what is read ---


@pytest.mark.parametrize(("written", "ranges"), [
    ("[a-c]", ((97, 99),)), ("[^a-c]", ((0, 96), (100, LAST))), ("[abc]", ((97, 99),)), (".", ((0, LAST),)),
    ("[-+*/]", ((42, 43), (45, 45), (47, 47))), ("[+-]", ((43, 43), (45, 45))), (r"[\]\\]", ((92, 93),)),
    (r"[\x41-\u005a]", ((65, 90),)), (r"[\U0001F600]", ((0x1F600, 0x1F600),)), ("[ä]", ((228, 228),)),
    (r'["\n#]', ((10, 10), (34, 35))),
])  # fmt: skip
def test_sets_of_characters(written: str, ranges: tuple[tuple[int, int], ...]) -> None:
    root = read_gbnf(f"root ::= {written} # a set\n", "--grammar")["root"]
    assert isinstance(root, Characters)
    assert root.ranges == ranges


@pytest.mark.parametrize(("grammar", "problem"), [
    ("", "there is no rule root"),
    ("# nothing", "there is no rule root"),
    ("start ::= \"a\"", "there is no rule root"),
    ("root ::= a", "line 1: a: there is no rule a"),
    ("root ::= (\"a\" | ", "line 1: the end: expected )"),
    ("root ::= \"a\n", "line 1: \"a\\n: this means nothing"),
    ("root ::= [a", "line 1: [a: this means nothing"),
    ("root ::= \"\\q\"", "line 1: \"\\q\": \\q stands for nothing"),
    ("root ::=\n  \"a\"{,}", "line 2: {,}: this means nothing"),
    ("root ::= \"a\"{5000}", "line 1: {5000}: so often a part cannot come (limit 2000)"),
    ("root ::= \"a\"{3,2}", "line 1: {3,2}: more at least than at most"),
    ("root ::= <think>", "line 1: <think>: this means nothing"),
    ("root ::= [b-a]", "line 1: [b-a]: there is no such character"),
    ("root ::= * \"a\"", "line 1: *: expected the name of a rule and ::="),
    ("\"a\"", "line 1: \"a\": expected the name of a rule and ::="),
    ("root ::= " + "(" * 60_000, "nested too deeply"),
])  # fmt: skip
def test_a_bad_grammar_is_one_line_that_names_the_place(grammar: str, problem: str) -> None:
    with pytest.raises(BadForm) as error:
        grammar_of_gbnf(grammar, "--grammar")
    assert str(error.value) == f"--grammar: {problem}"
    assert error.value.exit_code == 6


def test_a_chain_of_five_thousand_rules() -> None:
    rules = [f"r{n} ::= r{n + 1}" for n in range(5000)]
    with pytest.raises(BadForm, match="nested too deeply"):
        grammar_of_gbnf("\n".join(["root ::= r0", *rules, 'r5000 ::= "a"']), "--grammar")


def test_rules_that_double_each_other() -> None:
    """Written out, this is a word of a million characters."""
    rules = [f"r{n} ::= r{n + 1} r{n + 1}" for n in range(20)]
    matcher = matcher_of(grammar_of_gbnf("\n".join(["root ::= r0", *rules, 'r20 ::= "a"']), "--grammar"))
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
def test_what_grammars_mean(grammar: str, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


# --- words ---


def test_what_is_regular_is_one_word() -> None:
    shape = cut(read_gbnf('root ::= "a" item+ "z"\nitem ::= [a-z] | "é"\n', "--grammar"))["root"]
    assert isinstance(shape.kind, Word)


def test_words_as_large_as_can_be() -> None:
    """Strings and numbers of JSON are words, though its objects are no regular language."""
    json = r"""
    root ::= value
    value ::= object | string | number
    object ::= "{" (string ":" value ("," string ":" value)*)? "}"
    string ::= "\"" [^"]* "\""
    number ::= [0-9]+
    """
    shapes = cut(read_gbnf(json, "--grammar"))
    words = [each.kind for shape in shapes.values() for each in walk(shape) if isinstance(each.kind, Word)]
    assert len(words) < 12


class Twin:
    """Where a text may end that begins at a place: straight from the expressions. For rules without left recursion."""

    def __init__(self, rules: Rules, text: str) -> None:
        self.rules, self.text = rules, text
        self.ends = cache(self.ends)  # type: ignore[method-assign]

    def ends(self, part: Any, start: int) -> frozenset[int]:
        match part:
            case Characters(ranges):
                char = ord(self.text[start]) if start < len(self.text) else -1
                return frozenset({start + 1} if any(low <= char <= high for low, high in ranges) else ())
            case Rule(name):
                return self.ends(self.rules[name], start)
            case Choice(options):
                return frozenset(end for option in options for end in self.ends(option, start))
            case Sequence(parts):
                places = {start}
                for each in parts:
                    places = {end for place in places for end in self.ends(each, place)}
                return frozenset(places)
            case Repeat(inner, least, most):
                found, places = set(), {start}
                for n in range(len(self.text) + 2 if most is None else most + 1):
                    found |= places if n >= least else set()
                    places = {end for place in places for end in self.ends(inner, place)}
                return frozenset(found)
        raise AssertionError(part)


def random_grammar(random: np.random.Generator) -> str:
    """Rules over a, b and c; one of them is in its own midst, so that not all is one word."""

    def part(depth: int) -> str:
        kind = random.integers(0, 7 if depth else 3)
        if kind <= 1:
            return str(random.choice(['"a"', '"b"', '"c"', "[ab]", "[^a]", '"ab"', '"abc"', '"ca"']))
        if kind == 2:
            return str(random.choice(["one", "two"]))
        if kind == 3:
            return f"({part(depth - 1)} | {part(depth - 1)})"
        if kind == 4:
            return f"({part(depth - 1)}){random.choice(['*', '+', '?', '{2}', '{0,2}'])}"
        return f"{part(depth - 1)} {part(depth - 1)}"

    simple = part(2).replace("one", '"a"').replace("two", '"b"')
    return f'root ::= {part(2)} one {part(2)}\none ::= "a" {part(2)} one? {part(1)} | "c"\ntwo ::= {simple}\n'


def all_texts(longest: int) -> Iterator[str]:
    for n in range(longest + 1):
        yield from map("".join, itertools.product("abc", repeat=n))


@pytest.mark.parametrize("seed", range(40))
def test_random_grammars_mean_what_the_twin_says(seed: int) -> None:
    grammar = random_grammar(np.random.default_rng(seed))
    rules = read_gbnf(grammar, "--grammar")
    matcher = matcher_of(grammar_of_gbnf(grammar, "--grammar"))
    for text in all_texts(5):
        expected = len(text) in Twin(rules, text).ends(rules["root"], 0)
        matcher.reset()
        taken = matcher.try_consume_tokens(list(text.encode()))
        assert (taken == len(text) and matcher.is_accepting()) == expected, (grammar, text)


# --- beside llama.cpp ---


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
    """Of those that are text and whole characters: it lets control tokens through by their names."""
    pytest.importorskip("llama_cpp", reason="the peer is installed for benchmarks only")
    for mine, theirs, plain in allowed_by_llama_cpp(smollm2, grammar, text):
        assert np.flatnonzero((mine != theirs) & plain).tolist() == []


def test_bytes_are_a_vocabulary() -> None:
    assert BYTES.trie.vocab_size == 257
