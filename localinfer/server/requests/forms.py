"""Forms in request bodies: `multipart/form-data` (RFC 7578), in which clients send files.

A body is divided with `bytes.split`, so that one of the largest size takes milliseconds, whatever it contains.
"""

import asyncio
from collections.abc import Mapping, Sequence
from email.message import Message
from email.parser import BytesHeaderParser
from typing import TYPE_CHECKING

from localinfer.server.http.api_errors import APIError, field_error

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_PARTS = 100
MAX_HEADER_BYTES = 8 << 10  # of a part
MAX_TEXT_BYTES = 1 << 20  # of a field that is a text
END_OF_HEADERS = b"\r\n\r\n"
Form = Mapping[str, Sequence[bytes]]  # the values of each field


async def read_form(request: "Request") -> Form:
    """Return the form in a request body. Raises APIError (400) for anything else."""
    return await asyncio.to_thread(parse_form, request.headers.get("content-type", ""), await request.body())


def parse_form(content_type: str, body: bytes) -> Form:
    """Return the values of each field. Raises APIError (400) if the form is invalid or has more than MAX_PARTS."""
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_type() != "multipart/form-data" or not boundary:
        raise APIError(400, "the request body must be a form (multipart/form-data)")
    delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
    form: dict[str, list[bytes]] = {}
    for part in (b"\r\n" + body).split(delimiter, MAX_PARTS + 1)[1:]:
        if part.startswith(b"--"):
            return form
        name, value = parse_part(part)
        form.setdefault(name, []).append(value)
    raise APIError(400, f"the form is not complete, or has more than {MAX_PARTS} parts")


def parse_part(part: bytes) -> tuple[str, bytes]:
    """Return the name and the value of a field: what is between two delimiters. Raises APIError (400)."""
    end = part.find(END_OF_HEADERS, 0, MAX_HEADER_BYTES)
    headers = BytesHeaderParser().parsebytes(part[:end].lstrip())
    name = headers.get_param("name", header="content-disposition")
    if end < 0 or not isinstance(name, str):
        raise APIError(400, "a part of the form has no valid header with the name of its field")
    return name, part[end + len(END_OF_HEADERS) :]


def get_text(form: Form, name: str, default: str = "") -> str:
    """Return the text of a field, or the default if the form does not have it. Raises APIError (400)."""
    values = form.get(name, ())
    if len(values) > 1:
        raise field_error(name, "must be there once")
    return decode(name, values[0]) if values else default


def get_texts(form: Form, name: str) -> list[str]:
    """Return the texts of a field that may be repeated. Raises APIError (400)."""
    return [decode(name, value) for value in form.get(name, ())]


def decode(name: str, value: bytes) -> str:
    """Return the text of a field. Raises APIError (400) if it is not one, or too long."""
    try:
        if len(value) <= MAX_TEXT_BYTES:
            return value.decode()
    except UnicodeDecodeError:
        pass
    raise field_error(name, f"must be a text in UTF-8 of at most {MAX_TEXT_BYTES:,} bytes")
