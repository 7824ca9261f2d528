"""Who connects and does not ask."""

import socket
import threading
import time
from collections.abc import Iterator

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


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server that is not patient."""
    import uvicorn
    from starlette.responses import PlainTextResponse

    from localinfer.server import connection

    monkeypatch.setattr(connection, "PATIENCE", 0.3)
    config = uvicorn.Config(PlainTextResponse("here"), http=connection.Connection, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    opened = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=[[opened]])
    thread.start()
    assert until(lambda: server.started, 10)
    yield opened.getsockname()[1]
    server.should_exit = True
    thread.join()


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
