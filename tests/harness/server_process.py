"""Runs `localinfer serve` in a process, on loopback.

  with ServerProcess("tiny.gguf", "--api-key", "secret") as server:
      server.post("/v1/completions", {"prompt": "Hello"})
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from locations import CHECKOUT

PATIENCE = 120.0  # seconds: kernels may have to be compiled


class Response(NamedTuple):
    """A complete HTTP response."""

    status: int
    body: Any  # parsed JSON, or bytes
    headers: Mapping[str, str]


class ServerProcess:
    """`localinfer serve` with these arguments, on a free port. `prepare` is called in the new process.

    `config_dir` is the directory of models.toml; by default, there is none. `program` are Python's arguments.
    """

    def __init__(
        self, *arguments: str | Path | int, prepare: Callable[[], None] | None = None,
        config_dir: Path = Path("/nonexistent"), program: Sequence[str] = ("-m", "localinfer"),
    ) -> None:  # fmt: skip
        command = [sys.executable, *program, "serve", *map(str, arguments), "--port", "0"]
        environment = {name: value for name, value in os.environ.items() if name != "LOCALINFER_CONFIG_DIR"}
        environment |= {"PYTHONPATH": str(CHECKOUT), "LOCALINFER_CONFIG_DIR": str(config_dir)}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, env=environment, text=True,
            preexec_fn=prepare,
        )  # fmt: skip
        self.lines: list[str] = []
        self._read_until_listening()
        threading.Thread(target=self._drain, daemon=True).start()  # a full pipe would block the server

    def _read_until_listening(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("listening on "):
                self.url = line.removeprefix("listening on ").strip()
                self.port = int(self.url.rpartition(":")[2]) if self.url.startswith("http") else 0
                return
        raise AssertionError(f"the server ended with {self.process.wait()}: {''.join(self.lines)}")

    def _drain(self) -> None:
        assert self.process.stderr
        self.lines.extend(self.process.stderr)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Response:
        """Send a request and return the response.

        `body` is sent as JSON unless it is bytes. Underscores in header names become hyphens.
        """
        connection = self.connection()
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, sent, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        is_json = answer.getheader("content-type", "").startswith("application/json")
        received = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, json.loads(content) if is_json else content, received)

    def get(self, path: str, **headers: str) -> Response:
        return self.request("GET", path, **headers)

    def post(self, path: str, body: object, **headers: str) -> Response:
        return self.request("POST", path, body, **headers)

    def open(self, path: str, body: object) -> http.client.HTTPResponse:
        """Return a response whose body is still being streamed. Closing it disconnects."""
        connection = self.connection()
        connection.request("POST", path, json.dumps(body).encode())
        return connection.getresponse()

    def events(self, path: str, body: object) -> list[Any]:
        """Return all server-sent events except the final [DONE]."""
        with self.open(path, body) as answer:
            assert answer.status == 200, answer.read()
            return list(parse_events(answer))

    def lines_of(self, path: str, body: object) -> list[Any]:
        with self.open(path, body) as answer:
            assert answer.status == 200, answer.read()
            return [json.loads(line) for line in answer]

    def is_open(self) -> bool:
        """Return whether the server accepts requests."""
        try:
            return self.get("/health").status == 200
        except OSError:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def parse_events(answer: http.client.HTTPResponse) -> Iterator[Any]:
    """Yield the data of server-sent events, parsed as JSON, except the final [DONE]."""
    for line in answer:
        if line.startswith(b"data: ") and line != b"data: [DONE]\n":
            yield json.loads(line.removeprefix(b"data: "))


def wait_until(what: Callable[[], bool], seconds: float) -> bool:
    """Return whether the condition becomes true within `seconds`."""
    end = time.monotonic() + seconds
    while not (done := what()) and time.monotonic() < end:
        time.sleep(0.01)
    return done
