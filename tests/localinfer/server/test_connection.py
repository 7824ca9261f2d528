"""Who connects and does not ask."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from served import Served, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


def test_headers_without_end(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(5)
        client.sendall(HEAD)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            sent_for_ever(client, b"X: " + b"x" * 10_000 + b"\r\n")
        assert server.get("/health").status == 200


def sent_for_ever(client: socket.socket, line: bytes) -> None:
    while True:
        client.sendall(line)


@contextlib.contextmanager
def impatient(app: Any, loop: Any = "auto") -> Iterator[int]:
    """The port of a server with this application, in one of uvicorn's event loops."""
    import uvicorn

    from localinfer.server.connection import Connection

    server = uvicorn.Server(uvicorn.Config(app, http=Connection, loop=loop, lifespan="off", log_level="error"))
    opened = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=[[opened]])
    thread.start()
    assert until(lambda: server.started, 10)
    yield opened.getsockname()[1]
    server.should_exit = server.force_exit = True
    thread.join()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    from starlette.responses import PlainTextResponse

    from localinfer.server import connection

    monkeypatch.setattr(connection, "PATIENCE", 0.3)
    with impatient(PlainTextResponse("here")) as port:
        yield port


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_who_never_reads_has_left(monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    pytest.importorskip(loop, reason=f"there is no package {loop}")
    from localinfer.server import connection, streams
    from localinfer.server.intake import Intake
    from localinfer.server.settings import Settings

    closed = threading.Event()

    async def parts() -> AsyncGenerator[Any, None]:
        try:
            while True:
                await asyncio.sleep(0)
                yield bytes(1 << 20)
        finally:
            closed.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer = await streams.parts(parts(), streams.Form("text/plain", bytes, streams.openai_error))
        await answer(scope, receive, send)

    monkeypatch.setattr(connection, "PATIENCE", 0.3)
    with impatient(Intake(app, Settings()), loop) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert closed.wait(10)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD, HEAD + b"X: "])
def test_headers_that_do_not_come(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(5)
        client.sendall(sent)
        assert client.recv(1) == b""


def test_headers_that_come_in_time(port: int) -> None:
    """Once on each of several requests, and however long the client rests between them."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(5)
        for _ in range(3):
            client.sendall(b"GET / HTTP/1.1\r\n")
            time.sleep(0.1)
            client.sendall(b"Host: localhost\r\n\r\n")
            answer = client.makefile("rb")
            assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
            while answer.readline() != b"\r\n":
                pass
            assert answer.read(4) == b"here"
            time.sleep(0.5)
