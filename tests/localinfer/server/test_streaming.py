"""Comments in a stream that is silent, and errors before and after the first value."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from server_process import ServerProcess

from localinfer.server.http import streaming
from localinfer.server.http.api_errors import APIError

INTERVAL = 0.05


async def values(before: float, between: float) -> AsyncGenerator[Any, None]:
    await asyncio.sleep(before)
    yield {"n": 1}
    await asyncio.sleep(between)
    yield {"n": 2}


async def failing(seconds: float) -> AsyncGenerator[Any, None]:
    await asyncio.sleep(seconds)
    raise APIError(400, "no")
    yield {}


def send(generator: AsyncGenerator[Any, None], format: streaming.StreamFormat, interval: float = INTERVAL) -> bytes:
    """Return the body of the response."""
    chunks: list[bytes] = []

    async def take(message: Any) -> None:
        chunks.append(message.get("body", b""))

    async def run() -> None:
        response = await streaming.stream_response(generator, format, interval)
        await response({}, None, take)  # type: ignore[arg-type]

    asyncio.run(run())
    return b"".join(chunks)


def test_silence_is_filled_with_comments() -> None:
    for before, between in ((0.5, 0), (0, 0.5)):
        body = send(values(before, between), streaming.OPENAI_EVENTS)
        lines = [line for line in body.split(b"\n\n") if line]
        comments = [line for line in lines if line.startswith(b":")]
        assert 3 <= len(comments) <= 10
        rest = [line for line in lines if line not in comments]
        assert rest == [b'data: {"n":1}', b'data: {"n":2}', b"data: [DONE]"]


def test_no_comments_where_values_arrive_or_formats_have_none() -> None:
    assert b":" not in send(values(0, 0), streaming.EVENTS).replace(b'":', b"").replace(b"data:", b"")
    assert send(values(0.2, 0.2), streaming.LINES) == b'{"n":1}\n{"n":2}\n'
    assert b": still" not in send(values(0.2, 0.2), streaming.EVENTS, -1)


def test_errors_before_and_after_the_first_comment() -> None:
    with pytest.raises(APIError):
        send(failing(0), streaming.EVENTS)
    assert b'"message":"no"' in send(failing(0.2), streaming.EVENTS)


def test_interval_of_a_request(server: ServerProcess) -> None:
    """A prompt of many tokens takes longer than the interval."""
    request = {"messages": [{"role": "user", "content": "a b c d " * 1500}], "max_tokens": 1, "stream": True}
    with server.open("/v1/chat/completions", request | {"sse_ping_interval": 0.01}) as answer:
        assert b": still working" in answer.read()
    with server.open("/completion", {"prompt": "d c b a " * 1500, "n_predict": 1, "stream": True,
                                     "sse_ping_interval": 0.01}) as answer:  # fmt: skip
        assert answer.read().startswith(b": still working")
    assert server.post("/completion", {"prompt": "a", "stream": True, "sse_ping_interval": "soon"}).status == 400
