"""Unloads models that no request uses for some time: `--sleep-idle-seconds`, and `keep_alive` of Ollama's API."""

import asyncio
from datetime import UTC, datetime, timedelta

from localinfer.server.models.model_cache import ServedModel
from localinfer.server.models.model_queue import ModelQueue

RETRY_SECONDS = 1.0  # delay between attempts to unload a model that is in use
MAX_KEEP_SECONDS = 1e8  # about three years; a model that shall stay longer is never unloaded


class IdleTimers:
    """One timer for each model. `unload_times` are the times when they end."""

    def __init__(self, models: ModelQueue, sleep_idle_seconds: float) -> None:
        """`sleep_idle_seconds` is that of models that have none of their own; 0 means never."""
        self._models, self._sleep_idle_seconds = models, sleep_idle_seconds
        self.unload_times: dict[str, datetime] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def sleep_when_idle(self, served: ServedModel) -> None:
        """Unload a model after its `sleep_idle_seconds`, unless a request has set another time for it."""
        own = served.sleep_idle_seconds
        seconds = self._sleep_idle_seconds if own is None else own
        if seconds > 0 and served.name not in self.unload_times:
            self._start(served, seconds, asleep=True)

    def keep_alive(self, served: ServedModel, seconds: float | None) -> None:
        """Unload a model once it is idle for so many seconds; None keeps it until another model needs its memory."""
        self.cancel(served.name)
        if seconds is not None and seconds < MAX_KEEP_SECONDS:
            self._start(served, seconds, asleep=False)

    def cancel(self, name: str) -> None:
        self.unload_times.pop(name, None)
        if task := self._tasks.pop(name, None):
            task.cancel()

    def _start(self, served: ServedModel, seconds: float, *, asleep: bool) -> None:
        self.unload_times[served.name] = datetime.now(UTC) + timedelta(seconds=min(seconds, MAX_KEEP_SECONDS))
        self._tasks[served.name] = asyncio.create_task(self._unload_when_idle(served, seconds, asleep=asleep))

    async def _unload_when_idle(self, served: ServedModel, seconds: float, *, asleep: bool) -> None:
        """Unload the model after the given delay. While requests use it, retry until a new one comes."""
        while served.name in self.unload_times:
            await asyncio.sleep(seconds)
            seconds = max(seconds, RETRY_SECONDS)
            if self._models.unload_if_idle(served, asleep=asleep):
                self.unload_times.pop(served.name, None)
