"""Streaming responses: server-sent events and newline-delimited JSON."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from localinfer.server.http.api_errors import APIError, to_api_error
from localinfer.server.http.json_output import EncodedEvent, Event, dump_json

PING_INTERVAL = 30.0  # seconds, as in llama.cpp's server
SHUTDOWN = "localinfer.shutdown"  # true in the scope of a request that is cancelled because the server ends
SHUTDOWN_ERROR = APIError(503, "the server is shutting down")


def encode_event(value: object) -> bytes:
    """Encode a server-sent event without a type."""
    return b"data: " + dump_json(value) + b"\n\n"


def encode_named_event(value: Any) -> bytes:
    """Encode a server-sent event with an `event:` line that repeats `value["type"]`."""
    return f"event: {value['type']}\n".encode() + encode_event(value)


def encode_line(value: object) -> bytes:
    """Encode a line of newline-delimited JSON."""
    return dump_json(value) + b"\n"


class JSONResponse(Response):
    """A response with one JSON value, encoded by `dump_json`."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return dump_json(content)


def openai_error_event(error: APIError) -> Event:
    """Return the event with which an OpenAI stream reports an error."""
    return {"type": "error", "error": error.error}


def ollama_error_line(error: APIError) -> Event:
    """Return the object with which an Ollama stream reports an error."""
    return {"error": error.error["message"]}


class StreamFormat(NamedTuple):
    """How a stream is encoded.

    `write` encodes a value and `format_error` turns an error into a final value. `end_marker` ends a stream that had no
    error. `comment` is what clients ignore; it shows that a silent stream is alive.
    """

    media_type: str
    write: Callable[[Any], bytes]
    format_error: Callable[[APIError], Event]
    end_marker: bytes = b""
    comment: bytes = b""


EVENTS = StreamFormat(  # server-sent events
    "text/event-stream", encode_event, openai_error_event, comment=b": still working\n\n"
)
OPENAI_EVENTS = EVENTS._replace(end_marker=b"data: [DONE]\n\n")
NAMED_EVENTS = EVENTS._replace(write=encode_named_event)
LINES = StreamFormat("application/x-ndjson", encode_line, ollama_error_line)  # newline-delimited JSON


async def stream_response(
    values: AsyncGenerator[EncodedEvent, None], format: StreamFormat, ping_interval: float = PING_INTERVAL
) -> "EventStreamResponse":
    """Return a streaming response of these values, with a comment after `ping_interval` seconds without any, if the
    format has comments and the interval is positive.

    Waits for the first value or the first comment, so that an error before it is raised and determines the HTTP status.
    """
    interval = ping_interval if format.comment and ping_interval > 0 else None
    first = asyncio.ensure_future(anext(values))
    try:
        await asyncio.wait([first], timeout=interval)
    except asyncio.CancelledError:
        first.cancel()
        await asyncio.wait([first])
        raise
    if first.done():
        first.result()
    return EventStreamResponse(first, values, format, interval)


class EventStreamResponse(Response):
    """Sends each value as soon as it arrives and always closes the generator of the values.

    `Connection` aborts the transport if the client does not read.
    """

    def __init__(
        self, first: Awaitable[EncodedEvent], values: AsyncGenerator[EncodedEvent, None], format: StreamFormat,
        ping_interval: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(media_type=format.media_type, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.first, self.values, self.format, self.ping_interval = first, values, format, ping_interval
        self._is_silent = True  # nothing was sent since the last look

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        end = self.format.end_marker
        async with aclosing(self.values), self._pings(send):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await self._send(await self.first, send)
                async for value in self.values:
                    await self._send(value, send)
            except Exception as error:  # the status line is already sent
                end = self.format.write(self.format.format_error(to_api_error(error)))
            except asyncio.CancelledError:
                if SHUTDOWN not in scope:  # the client has disconnected
                    raise
                end = self.format.write(self.format.format_error(SHUTDOWN_ERROR))
            await send(body_message(end, more_body=False))

    async def _send(self, value: EncodedEvent, send: Send) -> None:
        self._is_silent = False
        await send(body_message(self.format.write(value)))

    @asynccontextmanager
    async def _pings(self, send: Send) -> AsyncIterator[None]:
        """Send a comment after each interval without a value, within the context."""

        async def ping(interval: float) -> None:
            while True:
                await asyncio.sleep(interval)
                if self._is_silent:
                    await send(body_message(self.format.comment))
                self._is_silent = True

        task = None if self.ping_interval is None else asyncio.create_task(ping(self.ping_interval))
        try:
            yield
        finally:
            if task is not None:
                task.cancel()


def body_message(chunk: bytes, *, more_body: bool = True) -> Message:
    """Return an ASGI message with a chunk of the response body."""
    return {"type": "http.response.body", "body": chunk, "more_body": more_body}
