"""Closings: what completes an answer from any state of its grammar, in few tokens."""

import json
import random
from itertools import product
from time import process_time
from typing import Any

import jsonschema
import numpy as np
import pytest
from constraints import BYTES, constraint_spec, worker_vocabulary
from random_schemas import random_schema

from localinfer.generation.structured.byte_vocabulary import ByteVocabulary
from localinfer.generation.structured.closing import MAX_STEPS, Closings, examples
from localinfer.generation.structured.constraint_end import FAR, NEAR, LimitWatch
from localinfer.generation.structured.grammar_texts import literals_of, patterns_of

ANY = 10**6


class Texts:
    """A vocabulary of the bytes, an end token and some longer tokens."""

    eos_token_id = 256

    def __init__(self, *longer: bytes, is_whole: bool = True) -> None:
        self.tokens = [*(bytes([byte]) if is_whole else b"" for byte in range(256)), b"", *longer]


VOCABULARY = ByteVocabulary(Texts())


def closings_of(text: bytes, **options: object) -> Closings:
    closings = Closings(constraint_spec(**options).grammar, VOCABULARY)
    closings.follow(list(text))
    return closings


def closed(text: bytes, limit: int = ANY, **options: object) -> bytes | None:
    """Return a text with its closing."""
    found = closings_of(text, **options).now(limit)
    return text + bytes(found.ids or []) if found.fits(limit) else None


@pytest.mark.parametrize(("text", "expected"), [
    (b"", b"{}"),
    (b'{"a": {"b": [1, "x', b'{"a": {"b": [1, "x"]}}'),
    (b'{"a": "x\\', b'{"a": "x\\""}'),  # an escape has begun
    (b'{"a": "\\u0', b'{"a": "\\u0000"}'),
    (b'{"a": "\xc3', b'{"a": "\xc3\x80"}'),  # a character has begun
    (b'{"a": "\xf0\x9f', b'{"a": "\xf0\x9f\x80\x81"}'),
    (b'{"a', b'{"a":""}'),
    (b'{"a": "b",', b'{"a": "b","":""}'),
    (b'{"a": tr', b'{"a": true}'),
    (b'{"a": -', b'{"a": -0}'),
    (b'{"a": 1.', b'{"a": 1.0}'),
    (b'{"a": 1e', b'{"a": 1e0}'),
])  # fmt: skip
def test_json(text: bytes, expected: bytes) -> None:
    assert closed(text, json_mode=True) == expected
    json.loads(expected)


def schema(**keywords: Any) -> dict[str, str]:
    return {"json_schema": json.dumps(keywords)}


PERSON = {"type": "object", "properties": {"name": {"type": "string", "minLength": 3}, "age": {"minimum": 18},
          "tags": {"type": "array", "items": {"type": "integer", "minimum": 12}, "minItems": 2}},
          "required": ["name", "tags"], "additionalProperties": False}  # fmt: skip
TREE = {"$defs": {"node": {"type": "object", "properties": {
            "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, "value": {"type": "integer"}},
            "required": ["left", "value"], "additionalProperties": False}}, "$ref": "#/$defs/node"}  # fmt: skip


@pytest.mark.parametrize(("keywords", "text"), [
    (PERSON, b""), (PERSON, b'{"name": "x'), (PERSON, b'{"name": "xyz", "tags": [1'), (PERSON, b'{"name": "xyz", "ag'),
    (TREE, b'{"left": {"left": {'), (TREE, b'{"left": {"left": nu'),
    ({"type": "string", "pattern": "^x*y$"}, b'"'), ({"type": "string", "pattern": "^(ab)*c$"}, b'"'),
    ({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"}, b'"Q'), ({"type": "string", "minLength": 500}, b'"'),
    ({"type": "string", "format": "date-time"}, b'"20'), ({"type": "string", "format": "uuid"}, b'"'),
    ({"type": "string", "format": "email"}, b'"'), ({"type": "string", "format": "uri"}, b'"'),
    ({"type": "string", "format": "ipv6"}, b'"1:'), ({"type": "string", "format": "hostname"}, b'"a-'),
    ({"enum": ["first", "second", 3]}, b'"s'), ({"const": {"a": [1, None]}}, b""),
    ({"type": "integer", "maximum": -17}, b""), ({"type": "number", "minimum": 0.25, "maximum": 0.5}, b""),
    ({"type": "integer", "multipleOf": 7, "minimum": 1}, b""), ({"type": "integer", "minimum": 1000}, b"7"),
    ({"type": "array", "items": {"type": "string"}, "minItems": 30}, b'["a", '),
    ({"type": "string", "pattern": "data:image/png;base64,"}, b'"x'), ({"type": "string", "pattern": "1.0"}, b'"'),
    ({"type": "string", "pattern": "[a-z]{2}-[A-Z]{2}"}, b'"x'), ({"type": "string", "pattern": "^a|bc|d$"}, b'"x'),
    ({"type": "object", "patternProperties": {"^x-[a-z]+$": {"type": "integer"}}, "additionalProperties": False},
     b'{"'),
])  # fmt: skip
def test_schemas(keywords: dict[str, Any], text: bytes) -> None:
    document = closed(text, **schema(**keywords))
    assert document
    jsonschema.validate(json.loads(document), keywords)


@pytest.mark.parametrize(("grammar", "text", "expected"), [
    ('root ::= "x" | "a" root "b"', b"aaaa", b"aaaaaxbbbbb"),
    ('root ::= [^<]* "</end>"', b"abc", b"abc</end>"),
    ('root ::= [^<]* "</end>"', b"abc</e", b"abc</end>"),
    ('root ::= ("a" | "b")* "c" | "d" root', b"da", b"daabc"),
    ('root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")"', b"((1+", b"((1+0))"),
    ('root ::= "- " [^\\n]+ "\\n" ("- " [^\\n]+ "\\n")*', b"- ab", b"- ab\n"),
    ('%llguidance {}\nstart: "<p>" t "</q>"\nt[suffix="</p>"]: /(?s:.*)/', b"<p>ab", b"<p>ab</p></q>"),
    ('%llguidance {}\nstart: t <[256]> "!"\nt: /(?s:.*)/', b"ab", None),
])  # fmt: skip
def test_grammars(grammar: str, text: bytes, expected: bytes | None) -> None:
    if expected:
        assert closed(text, grammar=grammar) == expected
    else:
        assert closings_of(text, grammar=grammar).now(ANY).ids == [256, ord("!")]  # a control token ends the text


def test_nothing_follows_a_complete_text() -> None:
    assert closed(b"12", **schema(type="integer")) == b"12"
    assert closed(b"ab", regex="(ab)+") == b"ab"


@pytest.mark.parametrize(("keywords", "shortest"), [
    ({"enum": ["aaaaaaaaaaaaaaaaaaaaaaaaaaa", "b"]}, b'"b"'),
    ({"anyOf": [{"type": "string", "minLength": 100}, {"type": "null"}]}, b"null"),
    ({"anyOf": [{"type": "object", "required": ["a", "b"], "properties": {"a": {"const": "long"}}},
                {"type": "array", "minItems": 3, "items": {"type": "integer"}}]}, b"[0,0,0]"),
    ({"type": "array", "prefixItems": [{"enum": ["abcdef", "z"]}] * 2, "minItems": 2, "items": False}, b'["z","z"]'),
])  # fmt: skip
def test_closing_is_shortened_to_its_limit(keywords: dict[str, Any], shortest: bytes) -> None:
    assert closed(b"", len(shortest), **schema(**keywords)) == shortest
    assert closed(b"", len(shortest) - 1, **schema(**keywords)) is None


def test_closing_after_a_token() -> None:
    closings = closings_of(b'{"a": [', json_mode=True)
    assert closings.after(ord('"'), 3).ids == [*b'"]}']
    assert not closings.after(ord('"'), 2).fits(2)
    assert closings.now(2).ids == [*b"]}"]  # the state is as before
    assert closings.after(ord("]"), 2).ids == [*b"}"]
    assert closings.after(ord("}"), 2).ids is None  # which is not allowed
    closings.follow([ord('"')])
    assert closings.after(ord("x"), 3).ids == [*b'"]}']


def test_random_prefixes_of_documents() -> None:
    """From anywhere in a random document, its closing makes it valid; after each token, the same one or a new one."""
    for seed in range(40):
        keywords = random_schema(np.random.default_rng(seed))
        source, closings, text = random.Random(seed), closings_of(b"", **schema(**keywords)), b""
        for _ in range(source.randrange(150)):
            mask, _ = closings.allowed(closings._matcher)
            allowed = [byte for byte in range(256) if mask and mask[byte // 8] >> byte % 8 & 1]
            plain = [byte for byte in allowed if 32 <= byte < 127] or allowed
            if not plain:
                break
            text += bytes([source.choice(plain)])
            assert closings.after(text[-1], ANY).fits(ANY)
            closings.follow([text[-1]])
        jsonschema.validate(json.loads(text + bytes(closings.now(ANY).ids or [])), keywords)


def test_all_prefixes_of_a_document_with_escapes_and_long_characters() -> None:
    document = json.dumps({"a": ["ä\n€\t\"\\", {"🙂\0": "é", "b": [-1.5e3, None, True]}]}, ensure_ascii=False).encode()
    for end in range(len(document)):
        done = closed(document[:end], json_mode=True)
        assert done, document[:end]
        json.loads(done)


# --- tokens ---


def test_fewest_tokens() -> None:
    """All divisions of random texts into random tokens are tried."""
    source = random.Random(1)
    for _ in range(200):
        tokens = ["".join(source.choices("abc", k=source.randint(1, 3))).encode() for _ in range(6)]
        vocabulary = ByteVocabulary(Texts(*tokens, is_whole=False))
        text = "".join(source.choices("abc", k=6)).encode()
        divisions = (parts for n in range(1, 7) for parts in product(tokens, repeat=n) if b"".join(parts) == text)
        shortest, ids = next(divisions, None), vocabulary.tokens_of(vocabulary.bytes_of(text))
        assert (ids is None) == (shortest is None)
        if ids is not None and shortest is not None:
            assert len(ids) == len(shortest)
            assert b"".join(vocabulary._tokens[id] for id in ids) == text


def test_control_tokens_stand_between_texts() -> None:
    vocabulary = ByteVocabulary(Texts(b"ab", b"", b"bc"))
    path = [*vocabulary.bytes_of(b"ab"), 258, *vocabulary.bytes_of(b"abc")]
    assert vocabulary.tokens_of(path) in ([257, 258, 257, ord("c")], [257, 258, ord("a"), 259])
    assert vocabulary.path_of([257, 258, 259]) == [*vocabulary.bytes_of(b"ab"), 258, *vocabulary.bytes_of(b"bc")]


def test_closing_uses_long_tokens() -> None:
    vocabulary = ByteVocabulary(Texts(b'"]}', b'"]'))
    closings = Closings(constraint_spec(json_mode=True).grammar, vocabulary)
    closings.follow([*b'{"a": ["x'])
    assert closings.now(1).ids == [257]


def test_worker_vocabulary_is_one() -> None:
    vocabulary = ByteVocabulary(worker_vocabulary(BYTES))
    assert Closings(constraint_spec(regex="a{3}").grammar, vocabulary).now(ANY).ids == [*b"aaa"]


# --- limits ---


@pytest.mark.parametrize("options", [
    schema(type="string", minLength=MAX_STEPS + 1000),
    {"regex": f"a{{{MAX_STEPS + 1000}}}"},
    {"grammar": 'root ::= "a" root'},
])  # fmt: skip
def test_search_is_bounded(options: dict[str, Any]) -> None:
    if "grammar" in options:
        options = {"grammar": 'root ::= r r r\nr ::= s{1900}\ns ::= "a" | "b"'}
    closings, began = closings_of(b"", **options), process_time()
    assert closings.now(ANY).ids is None
    assert closings._steps <= 0
    assert process_time() - began < 5


def test_literals_of_a_grammar() -> None:
    lark = '%llguidance {}\nstart: "a\\n" t /"x"/\nj: %json {"type": "string"}\nt[suffix="</p>"]: /.*/'
    assert literals_of(lark) == [b"</p>", b"a\n", b"x"]
    assert literals_of(json.dumps({"grammars": [{"lark_grammar": lark}]})) == literals_of(lark)
    assert literals_of(constraint_spec(json_mode=True).grammar) == []


def test_open_patterns_of_a_grammar() -> None:
    keywords = {"patternProperties": {"x-": {"pattern": "^a[0-9]{2}"}, "^y$": {}}, "items": {"pattern": "b$"}}
    grammar = constraint_spec(json_schema=json.dumps(keywords | {"pattern": "^c$"})).grammar
    assert sorted(patterns_of(grammar)) == ["a[0-9]{2}", "b", "x-"]
    assert sorted(patterns_of("start: j\nj: %json " + json.dumps(keywords))) == ["a[0-9]{2}", "b", "x-"]
    assert examples(["a[0-9]{2}", '.""'], VOCABULARY) == [b"a01", b"---"]


def test_nothing_is_looked_for_far_from_the_limit() -> None:
    watch, looked = LimitWatch(), []
    for n_left in range(5000, -1, -1):
        if watch.is_near(n_left):
            looked.append(n_left)
            watch.update(n_left, min(20, n_left))
    assert looked == [FAR, FAR // 2, *range(NEAR, -1, -1)]
    watch, looked = LimitWatch(), []
    for n_left in range(5000, -1, -1):
        if watch.is_near(n_left):
            looked.append(n_left)
            watch.update(n_left, min(n_left, 200 if n_left > 600 else 50))
    assert looked == [FAR, *range(800, 599, -1), 300, *range(NEAR, -1, -1)]


def test_closing_that_is_too_long_is_looked_for_seldom() -> None:
    watch, looked = LimitWatch(), []
    for n_left in range(100, -1, -1):
        if watch.is_near(n_left):
            looked.append(n_left)
            watch.update(n_left, 200)
    assert looked == [100, 74, 42, 2]


def test_search_without_a_result_is_not_repeated_often() -> None:
    watch, looked = LimitWatch(), []
    for n_left in range(300, -1, -1):
        if watch.is_near(n_left):
            looked.append(n_left)
            watch.update(n_left, None)
    assert looked == [300, 150, 75, 37, 18, 9, 4, 2, 1, 0]
