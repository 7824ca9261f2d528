"""Marks in a stream of items that show that nothing has arrived for a while, so that the client can be told."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from localinfer.server.slots import ItemQueue

T = TypeVar("T")


async def with_idle_marks(items: AsyncGenerator[T, None], seconds: float) -> AsyncGenerator[T | None, None]:
    """Yield the items, and None whenever no item has arrived for about `seconds`, at most twice as long.

    Raises what the generator raises. The caller closes both.
    """
    queue = ItemQueue[T | None | _End]()
    n_items = 0

    async def forward() -> None:
        nonlocal n_items
        try:
            async for item in items:
                n_items += 1
                queue.put(item)
        finally:
            queue.put(END)

    async def mark() -> None:
        n_seen = 0
        while True:
            await asyncio.sleep(seconds)
            if n_items == n_seen:
                queue.put(None)
            n_seen = n_items

    forwarding, marking = asyncio.ensure_future(forward()), asyncio.ensure_future(mark())
    try:
        while not isinstance(item := await queue.get(), _End):
            yield item
        await forwarding
    finally:
        for task in (forwarding, marking):
            task.cancel()
        await asyncio.wait([forwarding, marking])


class _End:
    """The type of the end marker."""


END = _End()
