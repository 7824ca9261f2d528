"""Slots deliver items from their threads to the event loop in order and in batches."""

import asyncio
import threading
import time
from collections.abc import Iterator

from localinfer.server.slots import MIN_WAKE_INTERVAL, EventLoopBridge, SlotPool

Items = list[int]


async def collect(slots: SlotPool, items: Iterator[int], observed: Items) -> None:
    async with slots.acquire(timeout=5) as slot:
        await slot.call(lambda: None)
        async for item in slot.iterate(items):
            observed.append(item)


def test_items_wait_for_a_wake() -> None:
    go, observed = threading.Event(), Items()

    def items() -> Iterator[int]:
        yield 1
        yield 2
        go.wait(5)
        slots.bridge.wake()
        go.clear()
        go.wait(5)
        yield 3

    async def check() -> None:
        collecting = asyncio.ensure_future(collect(slots, items(), observed))
        await asyncio.sleep(0.1)
        assert observed == []
        go.set()
        while len(observed) < 2:
            await asyncio.sleep(0.01)
        go.set()
        await collecting

    slots = SlotPool(1, max_waiting=0)
    asyncio.run(asyncio.wait_for(check(), 30))
    slots.close()
    assert observed == [1, 2, 3]


def test_slots_are_independent() -> None:
    async def check() -> None:
        await asyncio.gather(*(collect(slots, iter(range(n, n + 500)), each) for n, each in enumerate(observed)))

    slots, observed = SlotPool(4, max_waiting=0), [Items() for _ in range(4)]
    asyncio.run(asyncio.wait_for(check(), 30))
    slots.close()
    assert observed == [list(range(n, n + 500)) for n in range(4)]


def test_items_within_the_interval_are_delivered_together() -> None:
    received: list[tuple[int, float]] = []

    async def check() -> None:
        bridge = EventLoopBridge()
        bridge.loop = asyncio.get_running_loop()

        def put(*numbers: int, now: bool = False) -> None:
            for number in numbers:
                bridge.put(lambda each: received.append((each, time.monotonic())), number)
            bridge.wake(now=now)

        await asyncio.to_thread(put, 1)
        await asyncio.sleep(MIN_WAKE_INTERVAL / 4)
        assert [number for number, _ in received] == [1]
        await asyncio.to_thread(put, 2, 3)
        await asyncio.sleep(2 * MIN_WAKE_INTERVAL)
        assert [number for number, _ in received] == [1, 2, 3]
        await asyncio.to_thread(put, 4)
        await asyncio.to_thread(put, 5, now=True)
        await asyncio.sleep(MIN_WAKE_INTERVAL / 4)
        assert [number for number, _ in received] == [1, 2, 3, 4, 5]
        await asyncio.sleep(2 * MIN_WAKE_INTERVAL)  # after an idle interval the loop is woken at once again
        await asyncio.to_thread(put, 6)
        await asyncio.sleep(MIN_WAKE_INTERVAL / 4)
        assert [number for number, _ in received] == [1, 2, 3, 4, 5, 6]

    asyncio.run(check())
    times = dict(received)
    assert times[2] - times[1] > 0.9 * MIN_WAKE_INTERVAL
