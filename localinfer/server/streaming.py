"""Streaming responses: server-sent events and newline-delimited JSON."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from localinfer.server.api_errors import APIError, to_api_error
from localinfer.server.json_output import EncodedEvent, Event, dump_json


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
    error.
    """

    media_type: str
    write: Callable[[Any], bytes]
    format_error: Callable[[APIError], Event]
    end_marker: bytes = b""


EVENTS = StreamFormat("text/event-stream", encode_event, openai_error_event)  # server-sent events
OPENAI_EVENTS = EVENTS._replace(end_marker=b"data: [DONE]\n\n")
NAMED_EVENTS = EVENTS._replace(write=encode_named_event)
LINES = StreamFormat("application/x-ndjson", encode_line, ollama_error_line)  # newline-delimited JSON


async def stream_response(values: AsyncGenerator[EncodedEvent, None], format: StreamFormat) -> "EventStreamResponse":
    """Return a streaming response of these values.

    Waits for the first value, so that an error before it is raised and determines the HTTP status.
    """
    return EventStreamResponse(await anext(values), values, format)


class EventStreamResponse(Response):
    """Sends each value as soon as it arrives and always closes the generator of the values.

    `Connection` aborts the transport if the client does not read.
    """

    def __init__(self, first: EncodedEvent, values: AsyncGenerator[EncodedEvent, None], format: StreamFormat) -> None:
        super().__init__(media_type=format.media_type, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.first, self.values, self.format = first, values, format

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        _, write, format_error, end = self.format
        async with aclosing(self.values):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send(body_message(write(self.first)))
            try:
                async for value in self.values:
                    await send(body_message(write(value)))
            except Exception as error:  # the status line is already sent
                end = write(format_error(to_api_error(error)))
            await send(body_message(end, more_body=False))


def body_message(chunk: bytes, *, more_body: bool = True) -> Message:
    """Return an ASGI message with a chunk of the response body."""
    return {"type": "http.response.body", "body": chunk, "more_body": more_body}
