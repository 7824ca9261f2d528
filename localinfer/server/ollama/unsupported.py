"""Endpoints of Ollama that receive or send model files. They are refused with status 501."""

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.http.api_errors import APIError

BLOBS = "model files are not received; use `localinfer pull`, or copy them to the machine of the server"


async def refuse_push(_: Request) -> Response:
    """`/api/push`"""
    raise APIError(501, "/api/push: uploading models is not supported")


async def refuse_blob(_: Request) -> Response:
    """`/api/blobs/DIGEST`"""
    raise APIError(501, f"/api/blobs: {BLOBS}")
