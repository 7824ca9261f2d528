"""Where the server listens, who finds the place taken, and what goes wrong at the beginning."""

import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from served import Served


def refusal(*arguments: str | Path) -> tuple[int, str]:
    """The exit code, and the one line, of a server that does not come up."""
    command = [sys.executable, "-m", "localinfer", "serve", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    [line] = done.stderr.splitlines()
    assert done.stdout == ""
    return done.returncode, line


def asked_at(path: Path) -> int:
    """The status of a question at a Unix socket."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    connection.request("GET", "/v1/models")
    return connection.getresponse().status


def test_a_port_that_somebody_has(tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert refusal(tiny, "--port", port) == (1, f"error: 127.0.0.1:{port}: Address already in use")


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
def test_ipv6(tiny: Path) -> None:
    with Served(tiny, "--host", "::1") as server:
        assert server.url == f"http://[::1]:{server.port}"
        connection = http.client.HTTPConnection("::1", server.port)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200


class TestPath:
    def test_serves_this_user(self, tiny: Path, tmp_path: Path) -> None:
        path = tmp_path / "s.sock"
        with Served(tiny, "--host", path) as server:
            assert server.url == f"unix:{path}"
            assert path.stat().st_mode & 0o777 == 0o600
            assert asked_at(path) == 200
            assert refusal(tiny, "--host", path) == (1, f"error: {path}: Address already in use")
            assert asked_at(path) == 200
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(10) == 0
        assert not path.exists()

    def test_of_a_server_that_was_killed(self, tiny: Path, tmp_path: Path) -> None:
        path = tmp_path / "s.sock"
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(path))
        with Served(tiny, "--host", path):
            assert asked_at(path) == 200

    def test_that_is_something_else(self, tiny: Path, tmp_path: Path) -> None:
        path = tmp_path / "s.sock"
        path.write_text("mine")
        assert refusal(tiny, "--host", path) == (1, f"error: {path}: Address already in use")
        assert path.read_text() == "mine"


class TestKeys:
    def test_of_a_file(self, tiny: Path, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        file.write_text("first\n\n  second  \n")
        with Served(tiny, "--api-key-file", file, "--api-key", "third") as server:
            keys = "first", "second", "third", "", "fourth"
            statuses = [server.get("/v1/models", authorization=f"Bearer {key}").status for key in keys]
            assert statuses == [200, 200, 200, 401, 401]

    @pytest.mark.parametrize(("content", "what"), [(b"\n \n", "there is no key in it"), (b"\xff\n", "not UTF-8")])
    def test_of_no_use(self, tiny: Path, tmp_path: Path, content: bytes, what: str) -> None:
        file = tmp_path / "keys"
        file.write_bytes(content)
        assert refusal(tiny, "--api-key-file", file) == (2, f"error: --api-key-file: {file}: {what}")

    @pytest.mark.parametrize("key", ["", "  "])
    def test_empty(self, tiny: Path, key: str) -> None:
        assert refusal(tiny, "--api-key", key) == (2, "error: --api-key: is empty")

    def test_of_a_file_that_is_not_there(self, tiny: Path) -> None:
        expected = "error: --api-key-file: /nowhere/keys: No such file or directory"
        assert refusal(tiny, "--api-key-file", "/nowhere/keys") == (2, expected)
