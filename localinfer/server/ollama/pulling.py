"""`/api/pull`: download a model of models.toml or of the Hugging Face hub.

The download runs in a thread. It stops when the client leaves; the received bytes stay for the next attempt.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from time import monotonic

from starlette.requests import Request
from starlette.responses import Response

from localinfer.escaping import printable
from localinfer.hub import resolve
from localinfer.hub.pull import announced_digest, pull
from localinfer.server.http.api_errors import APIError, field_error
from localinfer.server.models.model_cache import ModelCache, model_file
from localinfer.server.ollama.progress import SUCCESS, Line, model_name, require_management, respond
from localinfer.server.requests.request_fields import read_json_object

LINE_INTERVAL = 0.1  # seconds between two lines
URL_SCHEMES = tuple(f"{scheme}:" for scheme in resolve.URL_SCHEMES)
SHOWN_DIGITS = 12  # of a digest in a status


class PullStopped(BaseException):
    """Raised in the thread of a download when the client has left. A BaseException, so that nothing retries."""


async def pull_model(request: Request) -> Response:
    """`/api/pull`"""
    fields, model_cache = await read_json_object(request), request.app.state.dispatcher.model_cache
    name = model_name(fields, "model", "name")
    return await respond(fields, pull_lines(await asyncio.to_thread(source_to_pull, name, model_cache)))


def source_to_pull(name: str, model_cache: ModelCache) -> str:
    """Return the name of the model to download, "" if there is nothing to do. Raises APIError if it is refused."""
    if not model_cache.serves_all:
        served = model_cache.find(name)
        if served and model_file(served):
            return ""
        require_management(model_cache)
    source = resolve.normalize_hub_url(name)
    if source.startswith(URL_SCHEMES):  # clients must not make this machine request any address
        raise field_error("model", "URLs are not supported over HTTP; use `localinfer pull` to download them")
    if source.startswith("hf:"):
        return source
    short = name.removesuffix(":latest")
    if short in resolve.model_registry().entries:
        return short
    if model_cache.find(name):
        return ""
    message = f"model: {printable(name, 100)} not found; use hf:OWNER/REPO:QUANT, or a name of models.toml"
    raise APIError(404, message, "model", "model_not_found")


async def pull_lines(name: str) -> AsyncGenerator[Line, None]:
    """Download a model, and yield the lines of the response. "" only reports success."""
    yield {"status": "pulling manifest"}
    if name:
        download = Download(name)
        try:
            while (line := await download.next_line()) is not None:
                yield line
        finally:
            download.stop()
    yield SUCCESS


class Download:
    """A download in a thread of its own, which does not keep the server from ending."""

    def __init__(self, name: str) -> None:
        self._name, self._digest = name, ""
        self._loop, self._stopped = asyncio.get_running_loop(), threading.Event()
        self._events: asyncio.Queue[Line | BaseException | None] = asyncio.Queue()
        self._next_line_at = 0.0
        threading.Thread(target=self._run, name="pull", daemon=True).start()

    async def next_line(self) -> Line | None:
        """Wait for the next line; None at the end. Raises what `pull` raises."""
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    def stop(self) -> None:
        """Stop the download at the next bytes that arrive."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            self._digest = announced_digest(self._name)
            pull(self._name, self._report)
        except BaseException as error:
            self._put(error)
        else:
            self._put(None)

    def _report(self, _stage: str, done: int, total: int) -> None:
        """The progress callback of `pull`."""
        if self._stopped.is_set():
            raise PullStopped
        if done == total or monotonic() >= self._next_line_at:
            self._next_line_at = monotonic() + LINE_INTERVAL
            status = {"status": f"pulling {self._digest[:SHOWN_DIGITS] or self._name}"}
            digest = {"digest": f"sha256:{self._digest}"} if self._digest else {"digest": self._name}
            self._put(status | digest | {"total": total, "completed": done})

    def _put(self, event: Line | BaseException | None) -> None:
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
