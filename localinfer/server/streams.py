"""Answers that come in many parts: server-sent events, and lines of JSON."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localinfer.server.problems import Problem, problem_of

Event = Mapping[str, Any]
DONE = b"data: [DONE]\n\n"
PATIENCE = 30.0  # seconds that a client may take for a part


ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumped(value: object) -> bytes:
    return ENCODE(value).encode("utf-8", "replace")


def as_event(value: object) -> bytes:
    return b"data: " + dumped(value) + b"\n\n"


def as_named_event(value: Any) -> bytes:
    """With its type in a line of its own, too."""
    return f"event: {value['type']}\n".encode() + as_event(value)


def as_line(value: object) -> bytes:
    return dumped(value) + b"\n"


class Json(Response):
    """An answer of one part; what is no text in UTF-8 becomes question marks."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return dumped(content)


class Parts(Response):
    """Sends what a generator yields, and closes it whatever happens. A client that does not read has left."""

    def __init__(self, parts: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(media_type=media_type, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.parts = parts

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async with aclosing(self.parts):
            with suppress(TimeoutError):
                await self._sent(send)

    async def _sent(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self.parts:
            async with asyncio.timeout(PATIENCE):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def events(
    values: AsyncGenerator[Event, None], write: Callable[[Any], bytes] = as_event, last: bytes = DONE
) -> Parts:
    """Server-sent events. What goes wrong before the first one is raised, and so has a status of its own."""
    first = await anext(values)
    return Parts(written(first, values, write, last, openai_error), "text/event-stream")


async def lines(values: AsyncGenerator[Event, None]) -> Parts:
    """A JSON object in each line."""
    first = await anext(values)
    return Parts(written(first, values, as_line, b"", ollama_error), "application/x-ndjson")


async def written(
    first: Event, values: AsyncGenerator[Event, None], write: Callable[[Any], bytes], last: bytes,
    failure: Callable[[Problem], Event],
) -> AsyncGenerator[bytes, None]:  # fmt: skip
    async with aclosing(values):
        yield write(first)
        try:
            async for value in values:
                yield write(value)
        except Exception as error:  # it is too late for a status
            yield write(failure(problem_of(error)))
            return
        if last:
            yield last


def openai_error(problem: Problem) -> Event:
    return {"type": "error", "error": problem.error}


def ollama_error(problem: Problem) -> Event:
    return {"error": problem.error["message"]}

