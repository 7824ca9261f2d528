"""Error responses in the format of the API that a request uses."""

from starlette.datastructures import Headers
from starlette.types import Scope

from localinfer.server.anthropic.errors import error_body, error_status
from localinfer.server.http.api_errors import APIError
from localinfer.server.http.streaming import JSONResponse

ANTHROPIC_VERSION = "anthropic-version"  # a header that all clients of Anthropic's API send


def error_response(scope: Scope, error: APIError) -> JSONResponse:
    """Return the error in the format of the API: a string in Ollama's, an object in OpenAI's and llama.cpp's, and
    another object in Anthropic's.
    """
    headers = {"retry-after": "1"} if error.status == 503 else {}
    if uses_anthropic_api(scope):
        return JSONResponse(error_body(error), error_status(error), headers)
    if scope["path"].startswith("/api/"):
        return JSONResponse({"error": error.error["message"]}, error.status, headers)
    return JSONResponse({"error": error.error}, error.status, headers)


def uses_anthropic_api(scope: Scope) -> bool:
    """Return whether a request is one of Anthropic's API, also at an endpoint that other APIs have, too."""
    return scope["path"].startswith("/v1/messages") or ANTHROPIC_VERSION in Headers(scope=scope)
