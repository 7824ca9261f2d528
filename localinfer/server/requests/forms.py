"""Forms in request bodies: `multipart/form-data` (RFC 7578), in which clients send files."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from localinfer.server.http.api_errors import APIError, field_error

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_FILES, MAX_FIELDS = 10, 100
MAX_TEXT_BYTES = 1 << 20  # of a field that is a text


class Form(NamedTuple):
    """The values of the fields of a form, by name: texts, and the contents of files."""

    texts: Mapping[str, Sequence[str]]
    files: Mapping[str, Sequence[bytes]]


async def read_form(request: "Request") -> Form:
    """Return the form in a request body.

    Raises APIError (400) for anything else, and for a form with more than MAX_FILES files, MAX_FIELDS texts, or
    MAX_TEXT_BYTES in a text.
    """
    from starlette.datastructures import UploadFile
    from starlette.exceptions import HTTPException

    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        raise APIError(400, "the request body must be a form (multipart/form-data)")
    texts: dict[str, list[str]] = {}
    files: dict[str, list[bytes]] = {}
    limits = {"max_files": MAX_FILES, "max_fields": MAX_FIELDS, "max_part_size": MAX_TEXT_BYTES}
    try:
        async with request.form(**limits) as fields:
            for name, value in fields.multi_items():
                if isinstance(value, UploadFile):
                    files.setdefault(name, []).append(await value.read())
                else:
                    texts.setdefault(name, []).append(value)
    except HTTPException as error:
        raise APIError(400, f"the form is invalid: {error.detail}") from error
    return Form(texts, files)


def get_text(form: Form, name: str, default: str = "") -> str:
    """Return the text of a field, or the default if the form does not have it. Raises APIError (400)."""
    values = get_texts(form, name)
    if len(values) > 1:
        raise field_error(name, "must be there once")
    return values[0] if values else default


def get_texts(form: Form, name: str) -> Sequence[str]:
    """Return the texts of a field that may be repeated. Raises APIError (400)."""
    if name in form.files:
        raise field_error(name, "must be a text, not a file")
    return form.texts.get(name, ())
