"""Slots: what their threads draw comes to the event loop in order, and when there is time for it."""

import asyncio
import threading
from collections.abc import Iterator

from localinfer.server.slots import Slots

Seen = list[int]


async def drawn(slots: Slots, items: Iterator[int], seen: Seen) -> None:
    async with slots.one(patience=5) as slot:
        await slot.call(lambda: None)
        async for item in slot.each(items):
            seen.append(item)


def test_items_wait_until_it_is_time_to_send_them() -> None:
    go, seen = threading.Event(), Seen()

    def items() -> Iterator[int]:
        yield 1
        yield 2
        go.wait(5)
        slots.outbox.send()
        go.clear()
        go.wait(5)
        yield 3

    async def check() -> None:
        taking = asyncio.ensure_future(drawn(slots, items(), seen))
        await asyncio.sleep(0.1)
        assert seen == []
        go.set()
        while len(seen) < 2:
            await asyncio.sleep(0.01)
        go.set()
        await taking

    slots = Slots(1, queue=0)
    asyncio.run(asyncio.wait_for(check(), 30))
    slots.close()
    assert seen == [1, 2, 3]


def test_each_slot_has_its_own() -> None:
    async def check() -> None:
        await asyncio.gather(*(drawn(slots, iter(range(n, n + 500)), each) for n, each in enumerate(seen)))

    slots, seen = Slots(4, queue=0), [Seen() for _ in range(4)]
    asyncio.run(asyncio.wait_for(check(), 30))
    slots.close()
    assert seen == [list(range(n, n + 500)) for n in range(4)]
