"""Error responses in the format of the API that a request uses."""

from starlette.types import Scope

from localinfer.server.api_errors import APIError
from localinfer.server.streaming import JSONResponse


def error_response(scope: Scope, error: APIError) -> JSONResponse:
    """Return the error in the format of the API: a string in Ollama's, an object in OpenAI's and llama.cpp's."""
    headers = {"retry-after": "1"} if error.status == 503 else {}
    if scope["path"].startswith("/api/"):
        return JSONResponse({"error": error.error["message"]}, error.status, headers)
    return JSONResponse({"error": error.error}, error.status, headers)
