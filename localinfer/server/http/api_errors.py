"""Errors of the API: an HTTP status and the error object of OpenAI's API."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from types import MappingProxyType

from localinfer.errors import (
    ConstraintError,
    ContextOverflowError,
    InvalidOutputError,
    LocalInferError,
    ModelNotFoundError,
    NotEnoughMemoryError,
    PromptTooLongError,
    UnsupportedError,
    UnsupportedInputError,
    UsageError,
)
from localinfer.escaping import printable

ERROR_TYPES = {  # HTTP status -> `type` of the error object, as in llama.cpp's server
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_output_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
STATUSES: tuple[tuple[type[LocalInferError], int, str | None], ...] = (
    (ContextOverflowError, 400, "context_length_exceeded"),
    (ConstraintError, 400, "invalid_schema"),
    (InvalidOutputError, 422, "schema_violation"),
    (UsageError, 400, None),
    (ModelNotFoundError, 404, "model_not_found"),
    (UnsupportedInputError, 400, None),
    (UnsupportedError, 501, None),
    (NotEnoughMemoryError, 503, "not_enough_memory"),
    (LocalInferError, 500, None),  # all others
)
CONSTRAINT_ERRORS = (ConstraintError, InvalidOutputError, UsageError)
MAX_MESSAGE_CHARS = 1000


@dataclass(slots=True)
class APIError(Exception):
    """An error that a client receives. `param` is the invalid field of the request, `details` are more fields of the
    error object.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    kind: str = ""  # the `type`, if it does not follow from the status
    details: dict[str, int] = field(default_factory=dict)

    @property
    def error(self) -> dict[str, object]:
        """The error object of OpenAI's API."""
        kind = self.kind or ERROR_TYPES.get(self.status, "server_error")
        return {
            "message": printable(self.message, MAX_MESSAGE_CHARS),
            "type": kind,
            "param": self.param,
            "code": self.code,
            **self.details,
        }


def field_error(field: str, message: str) -> APIError:
    """Return an error (400) for an invalid field, with the message `field: message`."""
    return APIError(400, f"{field}: {message}", param=field.partition("[")[0].partition(".")[0])


def without_directory(message: str) -> str:
    """Return a message `path: what is wrong` with the name of the file instead of its path, which is nobody's business.

    The name of a model or an option may contain slashes; absolute paths begin with one, or with a drive.
    """
    path, separator, problem = message.partition(": ")
    return PurePath(path).name + separator + problem if PurePath(path).is_absolute() else message


def with_field(message: str, field_of: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the message with the field of the request in place of the name that it begins with, and the field."""
    names, separator, problem = message.partition(": ")
    for name, its_field in field_of.items():
        if names == name or names.startswith(f"{name} and "):  # the latter if they exclude each other
            fields = " and ".join(field_of.get(each, each) for each in names.split(" and "))
            return fields + separator + problem, its_field
    input_field = re.match(r"(messages|input|prompt|images)\b.*?: ", message)
    if input_field:
        return message, input_field[1]
    return message, next((field for field in ("tools", "tool_choice") if message.startswith(f"{field}: ")), None)


def to_api_error(error: Exception, field_of: Mapping[str, str] = MappingProxyType({})) -> APIError:
    """Convert any exception. For an unexpected one, the client receives only its type.

    A constraint's error begins with the flag, or with the tool, that the constraint belongs to: `field_of` has the
    field of the request for each of them.
    """
    if isinstance(error, APIError):
        return error
    if isinstance(error, PromptTooLongError):
        counts = {"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx}
        return APIError(
            400, str(error), code="context_length_exceeded", kind="exceed_context_size_error", details=counts
        )
    for kind, status, code in STATUSES:
        if isinstance(error, kind):
            message, param = without_directory(str(error)), None
            if isinstance(error, (*CONSTRAINT_ERRORS, UnsupportedInputError)):
                message, param = with_field(message, field_of)
            return APIError(status, message, param, code)
    return APIError(500, f"unexpected {type(error).__name__}")
