"""Connections without a complete request, and clients that do not read the response."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from server_process import ServerProcess, wait_until

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


def test_names_that_clients_look_up_have_their_usual_case(server: ServerProcess) -> None:
    def names(path: str) -> set[str]:
        connection = server.connection()
        connection.request("GET", path, headers={"Origin": "http://localhost:3000"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return {name for name, _ in answer.getheaders()}

    assert {"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Vary"} <= names("/health")
    assert "Process-Start-Time-Unix" in names("/metrics")


def test_endless_headers(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(5)
        client.sendall(HEAD)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_forever(client, b"X: " + b"x" * 10_000 + b"\r\n")
        assert server.get("/health").status == 200


def send_forever(client: socket.socket, line: bytes) -> None:
    while True:
        client.sendall(line)


@contextlib.contextmanager
def serve_in_thread(app: Any, loop: Any = "auto") -> Iterator[int]:
    """Serve this application in one of uvicorn's event loops and yield the port."""
    import uvicorn

    from localinfer.server.http.connection import Connection

    server = uvicorn.Server(uvicorn.Config(app, http=Connection, loop=loop, lifespan="off", log_level="error"))
    opened = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=[[opened]])
    thread.start()
    assert wait_until(lambda: server.started, 10)
    yield opened.getsockname()[1]
    server.should_exit = server.force_exit = True
    thread.join()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    from starlette.responses import PlainTextResponse

    from localinfer.server.http import connection

    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.3)
    with serve_in_thread(PlainTextResponse("here")) as port:
        yield port


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_client_that_never_reads_is_disconnected(monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    pytest.importorskip(loop, reason=f"there is no package {loop}")
    from localinfer.server.http import connection, streaming
    from localinfer.server.request_body import RequestBodyMiddleware
    from localinfer.server.settings import Settings

    closed = threading.Event()

    async def chunks() -> AsyncGenerator[Any, None]:
        try:
            while True:
                await asyncio.sleep(0)
                yield bytes(1 << 20)
        finally:
            closed.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        format = streaming.StreamFormat("text/plain", bytes, streaming.openai_error_event)
        response = await streaming.stream_response(chunks(), format)
        await response(scope, receive, send)

    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.3)
    app_with_body = RequestBodyMiddleware(app, Settings())
    with serve_in_thread(app_with_body, loop) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert closed.wait(10)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD, HEAD + b"X: "])
def test_missing_headers(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(5)
        client.sendall(sent)
        assert client.recv(1) == b""


def test_slow_headers_within_the_timeout(port: int) -> None:
    """The timeout applies to each request; the idle time between requests does not count."""
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
