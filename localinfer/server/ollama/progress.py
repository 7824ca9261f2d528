"""Responses that report the progress of work on models: `/api/pull` and `/api/create`."""

from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response

from localinfer.server.http import streaming
from localinfer.server.http.api_errors import APIError, field_error
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.models.model_cache import ModelCache
from localinfer.server.requests.request_fields import Fields, get

Line = dict[str, Any]  # has at least a status
SUCCESS: Line = {"status": "success"}


async def respond(fields: Fields, lines: AsyncGenerator[Line, None]) -> Response:
    """Return a stream of the lines; only the last one if `stream` is false."""
    if get(fields, "stream", bool, True):
        return await streaming.stream_response(lines, streaming.LINES)
    return JSONResponse([line async for line in lines][-1])


def model_name(fields: Fields, *names: str) -> str:
    """Return the name of a model in the first of these fields that is present. Raises APIError (400) without any."""
    for field in names:
        if name := get(fields, field, str, ""):
            return name
    raise field_error(names[0], "is missing")


def require_management(model_cache: ModelCache) -> None:
    """Raise APIError (403) if the server was started for certain models."""
    if not model_cache.serves_all:
        problem = "this server only has the models that it was started with; `localinfer serve` without models has all"
        raise APIError(403, problem)
