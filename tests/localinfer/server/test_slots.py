"""Slots: what their threads draw comes to the event loop in order, and when there is time for it."""

import asyncio
import threading
import time
from collections.abc import Iterator

from localinfer.server.slots import PAUSE, Outbox, Slots

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


def test_what_comes_soon_after_goes_out_together() -> None:
    came: list[tuple[int, float]] = []

    async def check() -> None:
        outbox = Outbox()
        outbox.loop = asyncio.get_running_loop()

        def put(*numbers: int, now: bool = False) -> None:
            for number in numbers:
                outbox.put(lambda each: came.append((each, time.monotonic())), number)
            outbox.send(now=now)

        await asyncio.to_thread(put, 1)
        await asyncio.sleep(PAUSE / 4)
        assert [number for number, _ in came] == [1]
        await asyncio.to_thread(put, 2, 3)
        await asyncio.sleep(2 * PAUSE)
        assert [number for number, _ in came] == [1, 2, 3]
        await asyncio.to_thread(put, 4)
        await asyncio.to_thread(put, 5, now=True)
        await asyncio.sleep(PAUSE / 4)
        assert [number for number, _ in came] == [1, 2, 3, 4, 5]
        await asyncio.sleep(2 * PAUSE)  # after a pause without anything it is woken at once again
        await asyncio.to_thread(put, 6)
        await asyncio.sleep(PAUSE / 4)
        assert [number for number, _ in came] == [1, 2, 3, 4, 5, 6]

    asyncio.run(check())
    times = dict(came)
    assert times[2] - times[1] > 0.9 * PAUSE
