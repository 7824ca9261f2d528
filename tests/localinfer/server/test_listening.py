"""Listening on ports and Unix sockets, and errors at startup."""

import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import ServerProcess


def startup_error(*arguments: str | Path) -> tuple[int, str]:
    """Return the exit code and the error line of a server that fails to start."""
    command = [sys.executable, "-m", "localinfer", "serve", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    [line] = done.stderr.splitlines()
    assert done.stdout == ""
    return done.returncode, line


def status_at(path: Path) -> int:
    """Return the status of a request at a Unix socket."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    connection.request("GET", "/v1/models")
    return connection.getresponse().status


def test_port_in_use(tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert startup_error(tiny, "--port", port) == (1, f"error: 127.0.0.1:{port}: Address already in use")


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
def test_ipv6(tiny: Path) -> None:
    with ServerProcess(tiny, "--host", "::1") as server:
        assert server.url == f"http://[::1]:{server.port}"
        connection = http.client.HTTPConnection("::1", server.port)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200


class TestUnixSocket:
    def test_serves_this_user_only(self, tiny: Path, tmp_path: Path) -> None:
        path = tmp_path / "s.sock"
        with ServerProcess(tiny, "--host", path) as server:
            assert server.url == f"unix:{path}"
            assert path.stat().st_mode & 0o777 == 0o600
            assert status_at(path) == 200
            assert startup_error(tiny, "--host", path) == (1, f"error: {path}: Address already in use")
            assert status_at(path) == 200
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(10) == 0
        assert not path.exists()

    def test_replaces_the_socket_of_a_killed_server(self, tiny: Path, tmp_path: Path) -> None:
        path = tmp_path / "s.sock"
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(path))
        with ServerProcess(tiny, "--host", path):
            assert status_at(path) == 200

    def test_path_is_another_file(self, tiny: Path, tmp_path: Path) -> None:
        path = tmp_path / "s.sock"
        path.write_text("mine")
        assert startup_error(tiny, "--host", path) == (1, f"error: {path}: Address already in use")
        assert path.read_text() == "mine"


class TestAPIKeys:
    def test_key_file(self, tiny: Path, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        file.write_text("first\n\n  second  \n")
        with ServerProcess(tiny, "--api-key-file", file, "--api-key", "third") as server:
            keys = "first", "second", "third", "", "fourth"
            statuses = [server.get("/v1/models", authorization=f"Bearer {key}").status for key in keys]
            assert statuses == [200, 200, 200, 401, 401]

    @pytest.mark.parametrize(("content", "what"), [(b"\n \n", "contains no key"), (b"\xff\n", "not UTF-8")])
    def test_invalid_key_file(self, tiny: Path, tmp_path: Path, content: bytes, what: str) -> None:
        file = tmp_path / "keys"
        file.write_bytes(content)
        assert startup_error(tiny, "--api-key-file", file) == (2, f"error: --api-key-file: {file}: {what}")

    @pytest.mark.parametrize("key", ["", "  "])
    def test_empty(self, tiny: Path, key: str) -> None:
        assert startup_error(tiny, "--api-key", key) == (2, "error: --api-key: is empty")

    def test_missing_key_file(self, tiny: Path) -> None:
        expected = "error: --api-key-file: /nowhere/keys: No such file or directory"
        assert startup_error(tiny, "--api-key-file", "/nowhere/keys") == (2, expected)


@pytest.mark.parametrize("origin", ["http://127.0.0.1:3000/mcp", "*", "http://a; script-src *"])
def test_webui_connect_needs_an_origin(tiny: Path, origin: str) -> None:
    expected = f"error: --webui-connect: {origin}: is not an origin such as http://127.0.0.1:3000"
    assert startup_error(tiny, "--webui-connect", origin) == (2, expected)
