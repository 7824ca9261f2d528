"""Middleware that reads the request body within limits, and cancels a request whose client disconnects or that is still
running when the server ends.
"""

import asyncio

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from localinfer.server.error_responses import error_response
from localinfer.server.http.api_errors import APIError
from localinfer.server.http.middleware import Middleware
from localinfer.server.http.streaming import SHUTDOWN, SHUTDOWN_ERROR
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
            await self.run(body, scope, receive, send)

    async def run(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the endpoint. If it is cancelled because the server ends, the response is an error (503)."""
        has_started = False

        async def send_noting(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        work = asyncio.ensure_future(self.app(scope, replay(body), send_noting))
        running, this_task = scope["app"].state.running, asyncio.current_task()
        running.add(this_task)
        try:
            await run_until_disconnect(work, receive)
        except asyncio.CancelledError:  # of this task, by uvicorn
            scope[SHUTDOWN] = True
            await cancel(work)
            if not has_started:
                await error_response(scope, SHUTDOWN_ERROR)(scope, receive, send)
        finally:
            running.discard(this_task)

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


async def run_until_disconnect(work: asyncio.Future[None], receive: Receive) -> None:
    """Wait until `work` has ended. If the client disconnects before, cancel it."""
    disconnect_task = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait([work, disconnect_task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnect_task.cancel()
    await cancel(work)
    if not work.cancelled():
        work.result()


async def cancel(work: asyncio.Future[None]) -> None:
    """Cancel work that has not ended, and wait until it has."""
    work.cancel()
    await asyncio.wait([work])


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
