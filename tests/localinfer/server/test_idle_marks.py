"""Marks in a stream from which nothing arrives, as while a long prompt is read."""

import asyncio
from typing import Any

import pytest

from localinfer.server.idle_marks import with_idle_marks


def test_marks_while_nothing_arrives() -> None:
    async def slow() -> Any:
        for item in range(2):
            await asyncio.sleep(0.2)
            yield item

    async def collect() -> list[int | None]:
        return [item async for item in with_idle_marks(slow(), 0.05)]

    items = asyncio.run(collect())
    assert [item for item in items if item is not None] == [0, 1]
    assert items[0] is None
    assert items.count(None) >= 3


def test_errors_are_passed_on_and_the_source_is_closed() -> None:
    closed = []

    async def failing() -> Any:
        try:
            yield 1
            await asyncio.sleep(60)
            raise AssertionError
        finally:
            closed.append(True)

    async def broken() -> Any:
        yield 1
        raise ValueError("boom")

    async def run() -> None:
        marked = with_idle_marks(failing(), 60)
        assert await anext(marked) == 1
        await marked.aclose()
        assert closed == [True]
        with pytest.raises(ValueError, match="boom"):
            [item async for item in with_idle_marks(broken(), 60)]

    asyncio.run(run())
