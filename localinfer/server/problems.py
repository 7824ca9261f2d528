"""What goes wrong with a request: a status, and the words in which OpenAI's API tells of it."""

from dataclasses import dataclass

from localinfer.errors import (
    BadForm,
    ContextOverflow,
    LocalInferError,
    ModelNotFound,
    NotEnoughMemory,
    Unsupported,
    UsageError,
)
from localinfer.text import printable

TYPES = {  # of a status, as llama.cpp's server has them
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
STATUSES: tuple[tuple[type[LocalInferError], int, str | None], ...] = (
    (ContextOverflow, 400, "context_length_exceeded"),
    (BadForm, 400, "invalid_schema"),
    (UsageError, 400, None),
    (ModelNotFound, 404, "model_not_found"),
    (Unsupported, 501, None),
    (NotEnoughMemory, 503, "not_enough_memory"),
)
LONGEST = 1000  # characters of a message


@dataclass(slots=True)
class Problem(Exception):
    """`param` is the field of the request that is at fault."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None

    @property
    def error(self) -> dict[str, object]:
        """OpenAI's error object."""
        kind = TYPES.get(self.status, "server_error")
        return {"message": printable(self.message, LONGEST), "type": kind, "param": self.param, "code": self.code}


def bad(field: str, what: str) -> Problem:
    """A field of a request that cannot mean anything."""
    return Problem(400, f"{field}: {what}", param=field.partition("[")[0].partition(".")[0])


def problem_of(error: Exception) -> Problem:
    """The same as an answer. What nobody has foreseen does not tell a client of the inside."""
    if isinstance(error, Problem):
        return error
    for kind, status, code in STATUSES:
        if isinstance(error, kind):
            return Problem(status, str(error), code=code)
    if isinstance(error, LocalInferError):
        return Problem(500, str(error))
    return Problem(500, f"unexpected {type(error).__name__}")
