"""Streams of messages of a connection, with limits on what the server sends unasked."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

WINDOW_SECONDS = 10.0
MAX_MESSAGES = 5000  # within WINDOW_SECONDS

Streams = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]


class ServerFault(Exception):
    """Why a connection has ended: what the server did, in a few words that follow its name."""


class Flood(ServerFault):
    """More messages than MAX_MESSAGES within WINDOW_SECONDS."""


class Inspector:
    """Sees every message that a server sends.

    `on_request` is called with the method of a request of the server, `on_end` when the connection ends, with the fault
    of the server or "".
    """

    def __init__(self, on_request: Callable[[str], None], on_end: Callable[[str], None]) -> None:
        self._on_request, self.on_end = on_request, on_end
        self._window = 0.0
        self._count = 0

    def inspect(self, message: SessionMessage) -> None:
        """Raises Flood."""
        now = time.monotonic()
        if now - self._window > WINDOW_SECONDS:
            self._window, self._count = now, 0
        self._count += 1
        if self._count > MAX_MESSAGES:
            raise Flood(f"sent more than {MAX_MESSAGES:,} messages within {WINDOW_SECONDS:g} s")
        if isinstance(message.message, JSONRPCRequest):
            self._on_request(message.message.method)


@asynccontextmanager
async def inspected(transport: AbstractAsyncContextManager[Streams], inspector: Inspector) -> AsyncIterator[Streams]:
    """A transport whose received messages pass the inspector. A fault of the server ends the stream of them."""
    async with transport as (received, sent):
        forward, forwarded = anyio.create_memory_object_stream[SessionMessage | Exception](0)

        async def run() -> None:
            reason = ""
            async with forward:
                try:
                    async for item in received:
                        if isinstance(item, ServerFault):
                            raise item
                        if isinstance(item, SessionMessage):
                            inspector.inspect(item)
                        await forward.send(item)
                except ServerFault as fault:
                    reason = str(fault)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return  # the session has ended
                inspector.on_end(reason)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            try:
                yield forwarded, sent
            finally:
                tasks.cancel_scope.cancel()
