"""What Ollama does over HTTP, and localinfer in a terminal."""

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.problems import Problem

INSTEAD = {
    "/api/pull": "`localinfer pull` fetches models",
    "/api/delete": "`localinfer rm` removes models",
    "/api/create": "`localinfer quantize` makes a file, and models.toml gives it a name and options",
    "/api/copy": "a line in models.toml gives a model another name",
    "/api/push": "models are fetched and never sent anywhere",
}


async def refuse(request: Request) -> Response:
    raise Problem(501, f"not over HTTP: {INSTEAD[request.url.path]}")
