"""Forms in request bodies."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from localinfer.server.http.api_errors import APIError
from localinfer.server.requests.forms import MAX_FIELDS, MAX_FILES, MAX_TEXT_BYTES, Form, get_text, get_texts, read_form

TYPE = "multipart/form-data; boundary=abc"
AUDIO = '; filename="größe 日本.wav"\r\nContent-Type: audio/wav'


def body(*parts: bytes, end: bytes = b"--abc--\r\n") -> bytes:
    return b"".join(b"--abc\r\n" + part + b"\r\n" for part in parts) + end


def part(name: str, value: bytes, rest: str = "") -> bytes:
    return f'Content-Disposition: form-data; name="{name}"{rest}\r\n\r\n'.encode() + value


def read(content_type: str, content: bytes, piece: int = 1 << 16) -> Form:
    """Read a form that arrives in pieces of so many bytes."""
    from starlette.requests import Request

    pieces: Iterator[bytes] = (content[at : at + piece] for at in range(0, len(content), piece))

    async def receive() -> dict[str, Any]:
        data = next(pieces, b"")
        return {"type": "http.request", "body": data, "more_body": bool(data)}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", content_type.encode())], "app": None}
    return asyncio.run(read_form(Request(scope, receive)))


@pytest.mark.parametrize("piece", [7, 1 << 16])
def test_values_are_exactly_what_was_sent(piece: int) -> None:
    content = bytes(range(256)) + b"\r\n--ab\r\n\r\n--"
    parts = part("file", content, AUDIO), part("a[]", b"1"), part("a[]", "zwei ä".encode()), part("empty", b"")
    form = read('Multipart/Form-Data; charset=utf-8; boundary="abc"', body(*parts), piece)
    assert form == Form({"a[]": ["1", "zwei ä"], "empty": [""]}, {"file": [content]})
    assert get_texts(form, "a[]") == ["1", "zwei ä"]
    assert (get_text(form, "empty", "x"), get_text(form, "other", "x")) == ("", "x")


@pytest.mark.parametrize(("content_type", "content", "problem"), [
    ("application/json", b"{}", "must be a form"),
    ("", body(part("a", b"1")), "must be a form"),
    ("multipart/form-data", body(part("a", b"1")), "the form is invalid: Missing boundary"),
    (TYPE, body(*[part("a", b"1")] * (MAX_FIELDS + 1)), "Too many fields"),
    (TYPE, body(*[part("a", b"1", AUDIO)] * (MAX_FILES + 1)), "Too many files"),
    (TYPE, body(part("a", bytes(MAX_TEXT_BYTES + 1))), "maximum size"),
    (TYPE, body(b"no header"), "the form is invalid"),
    (TYPE, body(b"Content-Type: text/plain\r\n\r\n1"), "the form is invalid"),
])  # fmt: skip
def test_invalid_forms(content_type: str, content: bytes, problem: str) -> None:
    with pytest.raises(APIError, match=problem) as caught:
        read(content_type, content)
    assert caught.value.status == 400


def test_the_last_field_of_an_incomplete_form_is_missing() -> None:
    assert read(TYPE, body(part("a", b"1"), part("b", b"2"))[:-20]) == Form({"a": ["1"]}, {})


@pytest.mark.parametrize(("form", "problem"), [
    (Form({"model": ["a", "b"]}, {}), "model: must be there once"),
    (Form({}, {"model": [b"a"]}), "model: must be a text, not a file"),
])  # fmt: skip
def test_fields_that_are_no_text(form: Form, problem: str) -> None:
    with pytest.raises(APIError, match=problem):
        get_text(form, "model")
