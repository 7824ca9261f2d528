"""Forms in request bodies."""

import time

import pytest

from localinfer.server.http.api_errors import APIError
from localinfer.server.requests.forms import MAX_PARTS, decode, get_text, get_texts, parse_form

TYPE = "multipart/form-data; boundary=abc"


def form(*parts: bytes, end: bytes = b"--abc--\r\n") -> bytes:
    return b"".join(b"--abc\r\n" + part + b"\r\n" for part in parts) + end


def field(name: str, value: bytes, rest: str = "") -> bytes:
    return f'Content-Disposition: form-data; name="{name}"{rest}\r\n\r\n'.encode() + value


def test_values_are_exactly_what_was_sent() -> None:
    content = bytes(range(256)) + b"\r\n--ab\r\n\r\n--"
    parts = (
        field("file", content, '; filename="größe 日本.wav"\r\nContent-Type: audio/wav'), field("a[]", b"1"),
        field("a[]", b"zwei \xc3\xa4"), field("empty", b""),
    )  # fmt: skip
    found = parse_form('Multipart/Form-Data; charset=utf-8; boundary="abc"', b"preamble\r\n" + form(*parts) + b"end")
    assert found == {"file": [content], "a[]": [b"1", "zwei ä".encode()], "empty": [b""]}
    assert get_texts(found, "a[]") == ["1", "zwei ä"]
    assert (get_text(found, "empty", "x"), get_text(found, "other", "x")) == ("", "x")
    assert parse_form(TYPE, form()) == {}


@pytest.mark.parametrize(("content_type", "body", "problem"), [
    ("application/json", b"{}", "must be a form"),
    ("", form(field("a", b"1")), "must be a form"),
    ("multipart/form-data", form(field("a", b"1")), "must be a form"),
    (TYPE, b"", "is not complete"),
    (TYPE, form(field("a", b"1"), end=b""), "is not complete"),
    (TYPE, form(*[field("a", b"1")] * (MAX_PARTS + 1)), "more than 100 parts"),
    (TYPE, form(b"no header"), "no valid header"),
    (TYPE, form(b"Content-Type: text/plain\r\n\r\n1"), "no valid header"),
    (TYPE, form(b"X: " + b"y" * (1 << 20) + b"\r\n" + field("a", b"1")), "no valid header"),
])  # fmt: skip
def test_invalid_forms(content_type: str, body: bytes, problem: str) -> None:
    with pytest.raises(APIError, match=problem) as caught:
        parse_form(content_type, body)
    assert caught.value.status == 400


def test_as_many_parts_as_are_allowed() -> None:
    assert len(parse_form(TYPE, form(*[field("a", b"1")] * MAX_PARTS))["a"]) == MAX_PARTS


@pytest.mark.parametrize("value", [b"\xff", b"a" * ((1 << 20) + 1)])
def test_fields_that_are_no_texts(value: bytes) -> None:
    with pytest.raises(APIError, match="model: must be a text"):
        decode("model", value)


def test_a_repeated_field() -> None:
    with pytest.raises(APIError, match="model: must be there once"):
        get_text({"model": [b"a", b"b"]}, "model")


def test_a_large_body_of_almost_delimiters_takes_no_time() -> None:
    start = time.process_time()
    parse_form(TYPE, form(field("file", b"\r\n--ab" * (4 << 20))))
    assert time.process_time() - start < 2
