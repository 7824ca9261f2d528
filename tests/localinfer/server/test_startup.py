"""What the server answers while its model is loading, where it listens, and which endpoints flags switch off."""

import http.client
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from locations import CHECKOUT
from server_process import ServerProcess

from localinfer.errors import UnsupportedError
from localinfer.server.startup import Startup


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def status(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except ConnectionRefusedError:
        return 0, b""
    finally:
        connection.close()


def test_health_while_the_model_is_loading(tiny: Path) -> None:
    """The model loads when the test sends a line."""
    port = free_port()
    script = (
        "import sys, time, localinfer\n"
        "load = localinfer.load\n"
        "def slowly(*given, **keywords):\n"
        "    sys.stdin.readline()\n"
        "    return load(*given, **keywords)\n"
        "localinfer.load = slowly\n"
        "from cli.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "serve", str(tiny), "--port", str(port)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            end = time.monotonic() + 60
            while not (first := status(port, "/health"))[0] and time.monotonic() < end:
                time.sleep(0.02)
            assert first[0] == 503
            assert b"Loading model" in first[1]
            assert b"unavailable_error" in first[1]
            assert status(port, "/v1/models")[0] == 503
            assert status(port, "/api/tags") == (503, b'{"error":"Loading model"}')
            assert status(port, "/")[0] == 200
            assert process.stdin
            process.stdin.write(b"\n")
            process.stdin.flush()
            while status(port, "/health")[0] == 503 and time.monotonic() < end:
                time.sleep(0.02)
            assert status(port, "/health")[0] == 200
        finally:
            process.terminate()


NOTING_IMPORTS = """
import asyncio, sys

class Noted:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("localinfer."):
            where = "event loop" if asyncio._get_running_loop() else "elsewhere"
            print(where, name, file=sys.stdout, flush=True)

sys.meta_path.insert(0, Noted())
from cli.__main__ import main
main()
"""


def test_the_event_loop_imports_nothing_for_the_first_request(tiny: Path, tmp_path: Path) -> None:
    """Nothing else would be answered meanwhile."""
    port, noted = free_port(), tmp_path / "imports"
    command = [sys.executable, "-c", NOTING_IMPORTS, "serve", str(tiny.parent), "--port", str(port)]
    with noted.open("w") as log, subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log) as process:
        try:
            end = time.monotonic() + 60
            last = "elsewhere localinfer.runtime.scheduling.scheduled_engine"
            while last not in noted.read_text() and time.monotonic() < end:
                time.sleep(0.02)
            body = {"model": tiny.stem, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode())
            request.add_header("Content-Type", "application/json")
            while not status(port, "/health")[0]:
                time.sleep(0.02)
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 200
        finally:
            process.terminate()
    assert "\nevent loop" not in noted.read_text()


def test_failure_to_load_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(AssertionError, match=r"ended with 1: (?s:.*)error: .*broken\.gguf"):
        ServerProcess(tmp_path / "broken.gguf")


def test_startup_raises_what_loading_raised() -> None:
    def fail() -> None:
        raise UnsupportedError("no")

    startup, outcomes = Startup(fail), []
    startup.begin(lambda: outcomes.append("loaded"), lambda: outcomes.append("failed"))
    end = time.monotonic() + 10
    while not outcomes and time.monotonic() < end:
        time.sleep(0.01)
    assert outcomes == ["failed"]
    with pytest.raises(UnsupportedError):
        startup.require_success()
    with pytest.raises(KeyboardInterrupt):
        Startup(fail).require_success()


def test_switched_off_endpoints(tiny: Path) -> None:
    flags = ("--no-slots", "--no-metrics", "--no-ui", "--alias", "one,b-name", "--tags", "x,a")
    with ServerProcess(tiny, *flags) as served:
        assert served.get("/slots").status == served.get("/metrics").status == 501
        assert served.get("/").status == 404
        assert served.post("/props", {}).status == 501
        [model] = served.get("/v1/models").body["data"]
        assert (model["id"], model["aliases"], model["tags"]) == ("b-name", ["b-name", "one"], ["a", "x"])
        answer = served.post("/v1/completions", {"model": "one", "prompt": "a", "max_tokens": 1})
        assert answer.status == 200


def test_several_addresses(tiny: Path) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("there is no IPv6")
    with ServerProcess(tiny, "--host", "127.0.0.1,::1", "--props") as served:
        for host in ("127.0.0.1", "::1"):
            connection = http.client.HTTPConnection(host, served.port, timeout=60)
            connection.request("POST", "/props", "{}")
            assert connection.getresponse().status == 200
            connection.close()
