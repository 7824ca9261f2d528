"""Lines of all kinds, and lines that make no sense."""

import json
from typing import Any

import pytest

from localinfer.batch.reading import CHAT, TEXTS, Request, format_of, requests_of
from localinfer.errors import LocalInferError

HELLO = [{"role": "user", "content": "Hello"}]


def request(line: object, **how: Any) -> Request:
    """Of a file with this line alone."""
    content = line if isinstance(line, bytes) else json.dumps(line).encode()
    [found] = requests_of(content, "in", "jsonl", **how)
    return found


@pytest.mark.parametrize(
    ("line", "url", "body"),
    [
        ("Hello", CHAT, {"messages": HELLO}),
        ({"prompt": "Hello"}, CHAT, {"messages": HELLO}),
        ({"prompt": "Hello", "system": "S"}, CHAT, {"messages": [{"role": "system", "content": "S"}, *HELLO]}),
        ({"messages": HELLO, "seed": 1}, CHAT, {"messages": HELLO, "seed": 1}),
        ({"prompt": "Hello", "schema": {}, "temp": 0}, CHAT, {"messages": HELLO, "json_schema": {}, "temperature": 0}),
        ({"prompt": "Hello", "raw": True}, TEXTS, {"prompt": "Hello"}),
        ({"prompt": [1, 2], "raw": True}, TEXTS, {"prompt": [1, 2]}),
        ({"url": CHAT, "method": "POST", "body": {"messages": HELLO}}, CHAT, {"messages": HELLO}),
        ({"url": "/v1/embeddings", "body": {"input": "a"}}, "/v1/embeddings", {"input": "a"}),
    ],
)
def test_forms_of_a_line(line: object, url: str, body: object) -> None:
    found = request(line)
    assert (found.url, found.body, found.problem) == (url, body, None)
    assert (found.number, found.custom_id) == (1, "line-1")


def test_raw_for_all_lines() -> None:
    assert request("Hello", raw=True).url == TEXTS
    assert request({"prompt": "Hello", "raw": False}, raw=True).url == CHAT


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        (b"nonsense", 400, "no JSON"),
        (b"\xff\xfe", 400, "no JSON"),
        ([1], 400, "a line must be a JSON object, or a JSON string"),
        (5, 400, "a line must be a JSON object, or a JSON string"),
        ({}, 400, "neither url and body, nor messages, nor a prompt"),
        ({"prompt": 5}, 400, "prompt: must be a text"),
        ({"prompt": "a", "raw": 1}, 400, "raw: must be true or false"),
        ({"custom_id": 5, "prompt": "a"}, 400, "custom_id: must be a text"),
        ({"url": "/v1/foo", "body": {}}, 404, "url: must be /v1/chat/completions"),
        ({"url": CHAT, "method": "GET", "body": {}}, 400, "method: must be POST"),
        ({"url": CHAT, "body": "text"}, 400, "body: must be an object"),
        ({"body": {}}, 404, "url: must be"),
    ],
)
def test_a_line_that_makes_no_sense_is_a_request_with_a_problem(line: object, status: int, message: str) -> None:
    found = request(line)
    assert found.problem
    assert found.problem.status == status
    assert message in found.problem.message


def test_empty_lines_count_and_ask_nothing() -> None:
    found = requests_of(b'\xef\xbb\xbf"a"\r\n\n  \n"b"', "in", "jsonl")
    assert [(each.number, each.custom_id, each.body["messages"][0]["content"]) for each in found] == [
        (1, "line-1", "a"), (4, "line-4", "b")]  # fmt: skip


def test_lines_of_text() -> None:
    found = requests_of(b'{"a": 1}\n caf\xc3\xa9 \n\xff\n', "in", "text")
    assert [each.body["messages"][0]["content"] for each in found[:2]] == ['{"a": 1}', " café "]
    assert found[2].problem
    assert "not UTF-8" in found[2].problem.message


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf\n"])
def test_no_requests(content: bytes) -> None:
    with pytest.raises(LocalInferError, match=r"^in: there are no requests in it$"):
        requests_of(content, "in", "jsonl")


def test_two_of_the_same_custom_id() -> None:
    lines = b'{"prompt": "a", "custom_id": "x"}\n"b"\n{"prompt": "c", "custom_id": "x"}\n'
    with pytest.raises(LocalInferError, match=r"^in: lines 1 and 3 have the same custom_id, x$"):
        requests_of(lines, "in", "jsonl")


@pytest.mark.parametrize(
    ("content", "name", "format"),
    [
        (b"Hello", "a.jsonl", "jsonl"),
        (b'"a"', "a.txt", "text"),
        (b'\n{"prompt": "a"}\nb', "stdin", "jsonl"),
        (b'"a"', "stdin", "jsonl"),
        (b"42", "stdin", "text"),
        (b"Hello", "stdin", "text"),
        (b"", "stdin", "text"),
    ],
)
def test_format(content: bytes, name: str, format: str) -> None:
    assert format_of(content, name) == format


def test_the_digest_is_of_what_is_asked() -> None:
    first = request({"custom_id": "a", "prompt": "b", "seed": 1}).digest
    assert request(b'{"seed":1, "prompt":  "b", "custom_id": "a"}').digest == first
    others = [{"custom_id": "a", "prompt": "b"}, {"custom_id": "c", "prompt": "b", "seed": 1}]
    assert first not in [request(each).digest for each in others]
    assert request(b"nonsense").digest != request(b"other nonsense").digest


def test_requests_that_begin_the_same_stand_together() -> None:
    system = "You are brief. " * 9
    lines = [{"prompt": "a"}, {"prompt": "b", "system": system}, {"prompt": "c"}, {"prompt": "d", "system": system}]
    found = requests_of(b"\n".join(json.dumps(line).encode() for line in lines), "in", "jsonl")
    order = [each.number for each in sorted(found, key=lambda each: each.beginning)]
    assert abs(order.index(2) - order.index(4)) == 1
