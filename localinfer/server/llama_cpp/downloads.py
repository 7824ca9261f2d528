"""`POST /models`, which downloads a model of the hub in the background, and `DELETE /models`, which removes one."""

import asyncio
import threading
from time import monotonic
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable
from localinfer.hub.pull import announced_digest, pull
from localinfer.hub.user_registry import plan_removal
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import APIError
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.models.catalog import HUB
from localinfer.server.models.model_events import ModelEvents
from localinfer.server.ollama.progress import model_name, require_management
from localinfer.server.ollama.pulling import PullStopped, source_to_pull
from localinfer.server.requests.request_fields import read_json_object

EVENT_INTERVAL = 0.1  # seconds between two events


class BackgroundDownload:
    """A download in a thread of its own. Its events have the name by which the client calls the model."""

    def __init__(self, name: str, source: str, events: ModelEvents) -> None:
        self.name, self.source, self._events = name, source, events
        self.is_running = True
        self._done = self._total = 0
        self._loop, self._stopped, self._next_event_at = asyncio.get_running_loop(), threading.Event(), 0.0
        threading.Thread(target=self._run, name="download", daemon=True).start()

    def stop(self) -> None:
        """Stop the download at the next bytes that arrive."""
        self._stopped.set()

    def describe(self) -> dict[str, Any]:
        """Return the model of a list of models."""
        status = {"value": "downloading", "progress": self._progress()}
        return {
            "id": self.source, "object": "model", "created": 0, "owned_by": "localinfer", "aliases": [], "tags": [],
            "status": status, "source": "cache", "can_remove": False,
        }  # fmt: skip

    def _progress(self) -> dict[str, Any]:
        return {self.source: {"done": self._done, "total": self._total}}

    def _run(self) -> None:
        event = "download_failed"
        try:
            pull(self.source, self._report)
            event = "download_finished"
        except (LocalInferError, PullStopped, OSError):
            pass
        finally:
            self._loop.call_soon_threadsafe(self._end, event)

    def _report(self, _stage: str, done: int, total: int) -> None:
        """The progress callback of `pull`."""
        if self._stopped.is_set():
            raise PullStopped
        self._done, self._total = done, total
        if done == total or monotonic() >= self._next_event_at:
            self._next_event_at = monotonic() + EVENT_INTERVAL
            progress = {"progress": self._progress()}
            self._loop.call_soon_threadsafe(self._events.notify, "download_progress", self.name, progress)

    def _end(self, event: str) -> None:
        self.is_running = False
        self._events.notify(event, self.name)


class Downloads:
    """The downloads of a server."""

    def __init__(self, events: ModelEvents) -> None:
        self._events = events
        self._by_source: dict[str, BackgroundDownload] = {}

    def running(self) -> list[BackgroundDownload]:
        return [each for each in self._by_source.values() if each.is_running]

    def start(self, name: str, source: str) -> None:
        self._by_source[source] = BackgroundDownload(name, source, self._events)

    def cancel(self, name: str) -> bool:
        """Stop the download of a model, and return whether there was one."""
        found = [each for each in self.running() if name in (each.name, each.source)]
        for each in found:
            each.stop()
        return bool(found)

    def close(self) -> None:
        for each in self.running():
            each.stop()


async def download_model(request: Request) -> Response:
    """`POST /models`: begin to download a model. `/models/sse` tells how it goes, and `/models/unload` cancels it."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    name = model_name(await read_json_object(request), "model")
    require_management(dispatcher.model_cache)
    downloads: Downloads = request.app.state.downloads
    if dispatcher.model_cache.find(name) or any(name in (each.name, each.source) for each in downloads.running()):
        raise APIError(400, f"model '{printable(name, 100)}' already exists", "model")
    hub_name = HUB + name if "/" in name and ":" not in name.partition("/")[0] else name
    source = await asyncio.to_thread(source_to_pull, hub_name, dispatcher.model_cache)
    try:
        await asyncio.to_thread(announced_digest, source)
    except LocalInferError as error:
        raise APIError(400, f"model validation failed, unable to download: {error}", "model") from None
    downloads.start(name, source)
    return JSONResponse({"success": True})


async def delete_model(request: Request) -> Response:
    """`DELETE /models?model=NAME`: remove a download, after the model is unloaded."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    name = request.query_params.get("model", "")
    if not name:
        raise APIError(400, "model must be a non-empty string", "model")
    require_management(dispatcher.model_cache)
    request.app.state.downloads.cancel(name)
    served = dispatcher.model_cache.find(name)
    if served is None:
        raise APIError(404, f"model: {printable(name, 100)} not found", "model", "model_not_found")
    try:
        if served.origin != "cache":
            raise UsageError("it belongs to a directory or a preset")
        removal = await asyncio.to_thread(plan_removal, served.source)
    except UsageError:
        raise APIError(400, f"model: {printable(name, 100)} is not removable (not from cache)", "model") from None
    async with dispatcher.unloaded(served.name):
        await asyncio.to_thread(removal.delete)
    dispatcher.model_cache.catalog.forget()
    dispatcher.models.events.notify("model_remove", name)
    return JSONResponse({"success": True})
