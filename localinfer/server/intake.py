"""A request as a whole, within bounds; and as long as somebody waits for the answer."""

import asyncio
from collections.abc import Awaitable

from starlette.types import Message, Receive, Scope, Send

from localinfer.server.middleware import Middleware
from localinfer.server.problems import Problem
from localinfer.server.streams import Json


class Gone(Exception):
    """The client went away before the request was here."""


class Intake(Middleware):
    """Reads the body, bounded in size and time, and cancels what runs when the client goes away."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                body = await self.read(receive)
        except Gone:
            return
        except TimeoutError:
            await refuse(Problem(408, "the request took too long to arrive"), scope, receive, send)
        except Problem as problem:
            await refuse(problem, scope, receive, send)
        else:
            await until_gone(self.app(scope, replay(body), send), receive)

    async def read(self, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            body += message.get("body", b"")
            if len(body) > self.settings.body_limit:
                raise Problem(413, f"a request has {self.settings.body_limit:,} bytes at most")
            if not message.get("more_body"):
                return bytes(body)


async def refuse(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """And let go of the connection: what else comes there is the rest of the body."""
    answer = Json({"error": problem.error}, problem.status, headers={"connection": "close"})
    await answer(scope, receive, send)


def replay(body: bytes) -> Receive:
    parts = [body]

    async def receive() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        await asyncio.Event().wait()  # the end of the connection is not for the application to see
        raise AssertionError

    return receive


async def until_gone(work: Awaitable[None], receive: Receive) -> None:
    """Do the work, or drop it when the client disconnects; in any case to its last `finally`."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
        await asyncio.wait([working])
    if not working.cancelled():
        working.result()


async def gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
