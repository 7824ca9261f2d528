"""Errors in the format of Anthropic's API."""

from typing import Any

from localinfer.server.http.api_errors import APIError

ERROR_TYPES = {  # HTTP status -> `type` of the error object
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    529: "overloaded_error",
}
STATUSES = {501: 400, 503: 529}  # 501 would be repeated by clients; the API reports overload with a status of its own


def error_status(error: APIError) -> int:
    """Return the HTTP status with which Anthropic's API reports such an error."""
    return STATUSES.get(error.status, error.status)


def error_body(error: APIError) -> dict[str, Any]:
    """Return the error object, which is also the last event of a stream that fails."""
    kind = ERROR_TYPES.get(error_status(error), "api_error")
    return {"type": "error", "error": {"type": kind, "message": error_message(error)}}


def error_message(error: APIError) -> str:
    """Return the message. Clients recognize a prompt that is too long by the words of Anthropic's API, and then shorten
    the conversation.
    """
    message = str(error.error["message"])
    if n_tokens := error.details.get("n_prompt_tokens"):
        return f"prompt is too long: {n_tokens} tokens > {error.details['n_ctx']} maximum; {message}"
    return message
