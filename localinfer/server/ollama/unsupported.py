"""Endpoints of Ollama that manage models. They are not supported over HTTP and name the command to use instead."""

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.api_errors import APIError

ALTERNATIVES = {
    "/api/pull": "use `localinfer pull` to download models",
    "/api/delete": "use `localinfer rm` to remove models",
    "/api/create": "use `localinfer quantize` to create a file, and models.toml to set its name and options",
    "/api/copy": "use models.toml to give a model another name",
    "/api/push": "uploading models is not supported",
}


async def refuse(request: Request) -> Response:
    """Reject the request with status 501."""
    raise APIError(501, f"not supported over HTTP; {ALTERNATIVES[request.url.path]}")
