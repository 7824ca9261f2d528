"""`ps` and `stop` with a server on loopback that answers as the server of localinfer and Ollama."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cli.server.running import expiry
from localinfer.server.ollama.models import FOREVER

Run = Callable[..., tuple[int, str, str]]
LOADED = {"name": "small\x1b[31m", "size": 3 << 20, "context_length": 512, "expires_at": "2026-01-01T00:00:00"}


class Handler(BaseHTTPRequestHandler):
    """Answers /api/ps, and unloads one model."""

    def do_GET(self) -> None:
        self.answer(200, {"models": [LOADED]})

    def do_POST(self) -> None:
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = fields == {"model": "small", "keep_alive": 0, "stream": False}
        self.answer(200 if known else 404, {"done": True} if known else {"error": "no such model"})

    def answer(self, status: int, content: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_ps(run: Run, port: int) -> None:
    code, out, _ = run("ps", "--port", port)
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["NAME", "SIZE", "CONTEXT", "UNTIL"], ["small\\x1b[31m", "3.0", "MiB", "512", "2026-01-01T00:00:00"],
    ]  # fmt: skip
    assert json.loads(run("ps", "--port", port, "--json")[1]) == [LOADED]


def test_ps_of_a_model_without_keep_alive() -> None:
    assert expiry(FOREVER.isoformat()) == "another model needs the memory"


def test_stop(run: Run, port: int) -> None:
    assert run("stop", "small", "--port", port) == (0, "", "small: unloaded\n")
    code, _, err = run("stop", "large", "--port", port)
    assert (code, "no such model" in err) == (1, True)


def test_no_server(run: Run) -> None:
    code, out, err = run("ps", "--port", 1)
    assert (code, out.split()) == (0, ["NAME", "SIZE", "CONTEXT", "UNTIL"])
    assert err == "no server is running at http://127.0.0.1:1\n"
    assert run("stop", "small", "--port", 1)[0] == 1
