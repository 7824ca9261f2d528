"""Answers that come in many parts: server-sent events, and lines of JSON."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from localinfer.server.problems import Problem, problem_of
from localinfer.server.written import Event, Written, dumped


def as_event(value: object) -> bytes:
    return b"data: " + dumped(value) + b"\n\n"


def as_named_event(value: Any) -> bytes:
    """With its type in a line of its own, too."""
    return f"event: {value['type']}\n".encode() + as_event(value)


def as_line(value: object) -> bytes:
    return dumped(value) + b"\n"


class Json(Response):
    """An answer of one part."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return dumped(content)


def openai_error(problem: Problem) -> Event:
    return {"type": "error", "error": problem.error}


def ollama_error(problem: Problem) -> Event:
    return {"error": problem.error["message"]}


class Form(NamedTuple):
    """How values become an answer; what goes wrong becomes one more value, and `last` is for where nothing did."""

    media_type: str
    write: Callable[[Any], bytes]
    failure: Callable[[Problem], Event]
    last: bytes = b""


EVENTS = Form("text/event-stream", as_event, openai_error)  # server-sent
OPENAI_EVENTS = EVENTS._replace(last=b"data: [DONE]\n\n")
NAMED_EVENTS = EVENTS._replace(write=as_named_event)
LINES = Form("application/x-ndjson", as_line, ollama_error)  # a JSON object in each


async def parts(values: AsyncGenerator[Written, None], form: Form) -> "Parts":
    """An answer of these values. What goes wrong before the first one is raised, and so has a status of its own."""
    return Parts(await anext(values), values, form)


class Parts(Response):
    """Sends values as they come, and closes what yields them whatever happens. `connection` watches whether the client
    reads."""

    def __init__(self, first: Written, values: AsyncGenerator[Written, None], form: Form) -> None:
        super().__init__(media_type=form.media_type, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.first, self.values, self.form = first, values, form

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        _, write, failure, last = self.form
        async with aclosing(self.values):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send(body(write(self.first)))
            try:
                async for value in self.values:
                    await send(body(write(value)))
            except Exception as error:  # it is too late for a status
                last = write(failure(problem_of(error)))
            await send(body(last, more=False))


def body(part: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": part, "more_body": more}
