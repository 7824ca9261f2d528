"""Middleware that reads the request body within limits and cancels a request whose client disconnects."""

import asyncio
from collections.abc import Awaitable

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from localinfer.server.error_responses import error_response
from localinfer.server.http.api_errors import APIError
from localinfer.server.http.middleware import Middleware
from localinfer.server.prompt_history import client_name


class ClientDisconnected(Exception):
    """The client disconnected before the request body was complete."""


class RequestBodyMiddleware(Middleware):
    """Reads the whole body, limits its size and duration, and cancels the endpoint if the client disconnects."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        client_name.set(Headers(scope=scope).get("user-agent", ""))
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                body = await self.read(receive)
        except ClientDisconnected:
            return
        except TimeoutError:
            await reject(APIError(408, "timeout while reading the request body"), scope, receive, send)
        except APIError as error:
            await reject(error, scope, receive, send)
        else:
            await run_until_disconnect(self.app(scope, replay(body), send), receive)

    async def read(self, receive: Receive) -> bytes:
        """Return the request body. Raises ClientDisconnected, or APIError (413) if it exceeds `body_limit`."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            body += message.get("body", b"")
            if len(body) > self.settings.body_limit:
                raise APIError(413, f"the request body exceeds {self.settings.body_limit:,} bytes")
            if not message.get("more_body"):
                return bytes(body)


async def reject(error: APIError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error and close the connection, because the remaining body may still arrive on it."""
    response = error_response(scope, error)
    response.headers["connection"] = "close"
    await response(scope, receive, send)


def replay(body: bytes) -> Receive:
    """Return a `receive` that delivers a body that was already read."""
    pending = [body]

    async def receive() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        await asyncio.Event().wait()  # the application does not see the disconnect: the middleware handles it
        raise AssertionError

    return receive


async def run_until_disconnect(work: Awaitable[None], receive: Receive) -> None:
    """Run `work`, and cancel it if the client disconnects. Waits until `work` has ended in either case."""
    work_task = asyncio.ensure_future(work)
    disconnect_task = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait([work_task, disconnect_task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnect_task.cancel()
        if not work_task.done():
            work_task.cancel()
        await asyncio.wait([work_task])
    if not work_task.cancelled():
        work_task.result()


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
