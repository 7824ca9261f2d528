"""Transports to MCP servers at a URL: streamable HTTP, and the older HTTP with server-sent events (SSE)."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from localinfer.mcp.client.server_config import ServerConfig
from localinfer.mcp.client.streams import Streams

BODY_LIMIT = 16 << 20  # bytes of a response that is not a stream of events; the library limits events
CONNECT_SECONDS, READ_SECONDS = 10.0, 3600.0


class LimitedBody(httpx2.AsyncByteStream):
    """The body of a response, which is an error above BODY_LIMIT."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._body:
            size += len(chunk)
            if size > BODY_LIMIT:
                raise httpx2.ReadError(f"a response of more than {BODY_LIMIT >> 20} MiB")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


async def limit_body(response: httpx2.Response) -> None:
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    if not is_stream and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = LimitedBody(response.stream)


def create_http_client(
    headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """Return a client with limited responses. The parameters are those that the library passes."""
    timeout = timeout or httpx2.Timeout(CONNECT_SECONDS, read=READ_SECONDS)
    return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, event_hooks={"response": [limit_body]})


@asynccontextmanager
async def http_transport(config: ServerConfig) -> AsyncIterator[Streams]:
    async with (
        create_http_client(dict(config.headers)) as client,
        streamable_http_client(config.url, http_client=client) as streams,
    ):
        yield streams


def url_transport(config: ServerConfig, kind: Literal["http", "sse"]) -> AbstractAsyncContextManager[Streams]:
    if kind == "http":
        return http_transport(config)
    return sse_client(
        config.url, dict(config.headers), sse_read_timeout=READ_SECONDS, httpx_client_factory=create_http_client
    )
