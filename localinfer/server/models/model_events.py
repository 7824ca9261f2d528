"""What happens to models, for clients that listen: they are loaded, unloaded, downloaded, removed."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

ModelEvent = dict[str, Any]  # as in llama.cpp's server: "model", "event" and perhaps "data"
MAX_PENDING = 1000  # events that a slow client misses nothing of
ALL_MODELS = "*"


class ModelEvents:
    """Passes events on to all listeners."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[ModelEvent]] = set()

    def notify(self, event: str, model: str, data: object = None) -> None:
        """Send an event to all listeners. One that has not read MAX_PENDING events misses it."""
        content = {"model": model, "event": event} | ({} if data is None else {"data": data})
        for each in self._listeners:
            if each.qsize() < MAX_PENDING:
                each.put_nowait(content)

    def listen(self) -> AsyncGenerator[ModelEvent, None]:
        """Return a generator of all events from now on."""
        queue: asyncio.Queue[ModelEvent] = asyncio.Queue()
        self._listeners.add(queue)

        async def events() -> AsyncGenerator[ModelEvent, None]:
            try:
                while True:
                    yield await queue.get()
            finally:
                self._listeners.discard(queue)

        return events()
