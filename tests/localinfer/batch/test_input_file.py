"""Parsing of input lines, valid and invalid."""

import json
from typing import Any

import pytest

from localinfer.batch.input_file import CHAT_URL, COMPLETIONS_URL, Request, detect_format, parse_requests
from localinfer.errors import LocalInferError

HELLO = [{"role": "user", "content": "Hello"}]


def request(line: object, **how: Any) -> Request:
    """Return the request of a file with only this line."""
    content = line if isinstance(line, bytes) else json.dumps(line).encode()
    [actual] = parse_requests(content, "in", "jsonl", **how)
    return actual


@pytest.mark.parametrize(
    ("line", "url", "body"),
    [
        ("Hello", CHAT_URL, {"messages": HELLO}),
        ({"prompt": "Hello"}, CHAT_URL, {"messages": HELLO}),
        ({"prompt": "Hello", "system": "S"}, CHAT_URL, {"messages": [{"role": "system", "content": "S"}, *HELLO]}),
        ({"messages": HELLO, "seed": 1}, CHAT_URL, {"messages": HELLO, "seed": 1}),
        (
            {"prompt": "Hello", "schema": {}, "temp": 0},
            CHAT_URL,
            {"messages": HELLO, "json_schema": {}, "temperature": 0},
        ),
        ({"prompt": "Hello", "raw": True}, COMPLETIONS_URL, {"prompt": "Hello"}),
        ({"prompt": [1, 2], "raw": True}, COMPLETIONS_URL, {"prompt": [1, 2]}),
        ({"url": CHAT_URL, "method": "POST", "body": {"messages": HELLO}}, CHAT_URL, {"messages": HELLO}),
        ({"url": "/v1/embeddings", "body": {"input": "a"}}, "/v1/embeddings", {"input": "a"}),
    ],
)
def test_line_forms(line: object, url: str, body: object) -> None:
    actual = request(line)
    assert (actual.url, actual.body, actual.error) == (url, body, None)
    assert (actual.number, actual.custom_id) == (1, "line-1")


def test_raw_for_all_lines() -> None:
    assert request("Hello", raw=True).url == COMPLETIONS_URL
    assert request({"prompt": "Hello", "raw": False}, raw=True).url == CHAT_URL


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        (b"nonsense", 400, "invalid JSON"),
        (b"\xff\xfe", 400, "invalid JSON"),
        ([1], 400, "a line must be a JSON object or a JSON string"),
        (5, 400, "a line must be a JSON object or a JSON string"),
        ({}, 400, "needs url and body, messages, or a prompt"),
        ({"prompt": 5}, 400, "prompt: must be a string"),
        ({"prompt": "a", "raw": 1}, 400, "raw: must be true or false"),
        ({"custom_id": 5, "prompt": "a"}, 400, "custom_id: must be a string"),
        ({"url": "/v1/foo", "body": {}}, 404, "url: must be /v1/chat/completions"),
        ({"url": CHAT_URL, "method": "GET", "body": {}}, 400, "method: must be POST"),
        ({"url": CHAT_URL, "body": "text"}, 400, "body: must be an object"),
        ({"body": {}}, 404, "url: must be"),
    ],
)
def test_invalid_line_is_a_request_with_an_error(line: object, status: int, message: str) -> None:
    actual = request(line)
    assert actual.error
    assert actual.error.status == status
    assert message in actual.error.message


def test_empty_lines_are_counted_and_skipped() -> None:
    actual = parse_requests(b'\xef\xbb\xbf"a"\r\n\n  \n"b"', "in", "jsonl")
    assert [(each.number, each.custom_id, each.body["messages"][0]["content"]) for each in actual] == [
        (1, "line-1", "a"), (4, "line-4", "b")]  # fmt: skip


def test_text_lines() -> None:
    actual = parse_requests(b'{"a": 1}\n caf\xc3\xa9 \n\xff\n', "in", "text")
    assert [each.body["messages"][0]["content"] for each in actual[:2]] == ['{"a": 1}', " café "]
    assert actual[2].error
    assert "not UTF-8" in actual[2].error.message


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf\n"])
def test_no_requests(content: bytes) -> None:
    with pytest.raises(LocalInferError, match=r"^in: contains no requests$"):
        parse_requests(content, "in", "jsonl")


def test_duplicate_custom_id() -> None:
    lines = b'{"prompt": "a", "custom_id": "x"}\n"b"\n{"prompt": "c", "custom_id": "x"}\n'
    with pytest.raises(LocalInferError, match=r"^in: lines 1 and 3 have the same custom_id, x$"):
        parse_requests(lines, "in", "jsonl")


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
    assert detect_format(content, name) == format


def test_digest_depends_on_the_request() -> None:
    first = request({"custom_id": "a", "prompt": "b", "seed": 1}).digest
    assert request(b'{"seed":1, "prompt":  "b", "custom_id": "a"}').digest == first
    others = [{"custom_id": "a", "prompt": "b"}, {"custom_id": "c", "prompt": "b", "seed": 1}]
    assert first not in [request(each).digest for each in others]
    assert request(b"nonsense").digest != request(b"other nonsense").digest


def test_requests_with_a_common_prefix_are_adjacent() -> None:
    system = "You are brief. " * 9
    lines = [{"prompt": "a"}, {"prompt": "b", "system": system}, {"prompt": "c"}, {"prompt": "d", "system": system}]
    actual = parse_requests(b"\n".join(json.dumps(line).encode() for line in lines), "in", "jsonl")
    order = [each.number for each in sorted(actual, key=lambda each: each.prefix_sort_key)]
    assert abs(order.index(2) - order.index(4)) == 1
