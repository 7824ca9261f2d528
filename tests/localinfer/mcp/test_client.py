"""The MCP client with real servers, also with some that misbehave."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from locations import CHECKOUT, TESTS

from localinfer import paths
from localinfer.mcp.client import connection as connection_module
from localinfer.mcp.client import stdio_transport, streams
from localinfer.mcp.client.client import McpClient
from localinfer.mcp.client.server_config import parse_servers

pytest.importorskip("mcp")
RAW, LIBRARY = (str(TESTS / "harness" / f"{name}_mcp_server.py") for name in ("raw", "library"))
Connect = Callable[..., McpClient]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect to servers, given as keywords: arguments of the raw server, or an entry of a configuration file."""
    opened: list[McpClient] = []

    def start(**servers: object) -> McpClient:
        entries = {
            name: each if isinstance(each, dict) else {"command": sys.executable, "args": [RAW, *each]}  # type: ignore[misc]
            for name, each in servers.items()
        }
        opened.append(McpClient(parse_servers({"mcpServers": entries}, "test", os.environ)))
        opened[-1].wait_until_started(lambda *_: None)
        return opened[-1]

    yield start
    for client in opened:
        client.close()


def call(client: McpClient, name: str, seconds: float = 20, **arguments: object) -> str:
    return client.call(client.tools()[name], arguments, seconds)


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


# --- calls and results ---


def test_calls_and_results(connect: Connect) -> None:
    client = connect(raw=[])
    assert call(client, "echo", text="Grüße") == "echo: Grüße"
    assert call(client, "fail") == "error: no such file"
    assert call(client, "structured") == '{"degrees": 21}'
    assert call(client, "picture") == "[image/png: images and audio are not supported]"
    big = call(client, "big")
    assert big.endswith("\n[truncated: 1,000,000 characters in total]")
    assert len(big) < 33_000
    assert call(client, "text_lines", text="x") == "text_lines: x"  # what else it wrote to stdout is ignored
    [server] = client.servers
    assert server.title == r"raw 1\x1b[31m"
    assert len(client.tools()) == len(server.tools) == 13
    assert client.take_notices() == [
        "MCP server raw: 2 of its tools are left out: their names are invalid, or those of other tools"
    ]
    log = (paths.mcp_logs_dir() / "raw.log").read_text()
    assert "stdout: Listening on port 80\n" in log


def test_the_environment_of_a_server(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server gets its own variables, and not the secrets of this process."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    client = connect(raw={"command": sys.executable, "args": [RAW], "env": {"OWN": "${HF_TOKEN}!"}})
    assert call(client, "variable", text="HF_TOKEN") == "(not set)"
    assert call(client, "variable", text="OWN") == "secret!"
    assert call(client, "variable", text="PATH") == os.environ["PATH"]


def test_servers_start_at_the_same_time_and_share_names(connect: Connect) -> None:
    client = connect(a=[], b=[], none={"command": "no-such-command"})
    assert {"a__echo", "b__echo"} <= client.tools().keys()
    assert call(client, "b__echo", text="x") == "echo: x"
    assert [server.problem for server in client.servers] == ["", "", "no such command: no-such-command"]
    assert "MCP server none: no such command: no-such-command" in client.take_notices()


def test_a_server_of_the_library(connect: Connect) -> None:
    """It speaks the protocol of 2026-07-28, in which a client has to ask for changes of the list of tools."""
    client = connect(library={"command": sys.executable, "args": [LIBRARY]})
    assert json.loads(call(client, "get_weather", city="Oslo")) == {"city": "Oslo", "degrees": 21}
    assert call(client, "get_weather").startswith("error: Error executing tool get_weather")
    assert call(client, "add_tool") == "done"
    wait_for(lambda: "added" in client.tools())
    assert client.take_notices() == ["MCP server library: its tools have changed: +added"]


@pytest.mark.parametrize(("server", "kind"), [("http", None), ("http", "http"), ("sse", None), ("sse", "sse")])
def test_servers_at_a_url(connect: Connect, server: str, kind: str | None) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, LIBRARY, server, str(port)])
    try:
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 60)
        entry = {"url": f"http://127.0.0.1:{port}/{'sse' if server == 'sse' else 'mcp'}", "type": kind}
        client = connect(remote={**entry, "headers": {"x-key": "secret"}}, closed=entry)
        assert json.loads(call(client, "get_weather", city="Oslo"))["degrees"] == 21
        assert client.servers[1].state == "ended"
        [tool, *_] = client.tools().values()
        process.kill()
        process.wait()
        assert client.call(tool, {"city": "Oslo"}, 10).startswith("error: ")
    finally:
        process.kill()
        process.wait()


# --- servers that misbehave ---


class EndlessBody(BaseHTTPRequestHandler):
    """Answers every request with JSON without an end."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"[" * 65536)

    def log_message(self, *_: object) -> None:
        pass


def test_a_response_without_end(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.mcp.client.http_transport.BODY_LIMIT", 1 << 20)
    with ThreadingHTTPServer(("127.0.0.1", 0), EndlessBody) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = connect(bad={"url": f"http://127.0.0.1:{server.server_port}/mcp", "type": "http"})
        server.shutdown()
    [server_state] = client.servers
    assert server_state.state == "ended"
    assert "a response of more than 1 MiB" in server_state.problem


def test_a_server_that_exits_at_once(connect: Connect) -> None:
    client = connect(bad=["exits"], good=[])
    assert call(client, "echo", text="x") == "echo: x"
    assert "MCP server bad: exited with code 7" in client.take_notices()
    assert "no configuration" in (paths.mcp_logs_dir() / "bad.log").read_text()


def test_a_server_that_does_not_answer(connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connection_module, "START_SECONDS", 2.0)
    monkeypatch.setattr(stdio_transport, "EXIT_SECONDS", 0.2)
    client = connect(bad=["silent", str(tmp_path / "pids")])
    assert client.take_notices() == ["MCP server bad: did not start within 2 s"]
    assert has_ended(int((tmp_path / "pids").read_text()))


def test_a_server_that_writes_only_text(connect: Connect) -> None:
    client = connect(bad=["garbage"])
    assert client.take_notices() == ["MCP server bad: writes text to stdout that is no message of MCP"]
    assert (paths.mcp_logs_dir() / "bad.log").stat().st_size < 100_000


def test_a_list_of_tools_without_end(connect: Connect) -> None:
    client = connect(raw=["pages"])
    assert len(client.tools()) == connection_module.MAX_TOOLS
    assert client.take_notices() == ["MCP server raw: only its first 500 tools are used"]


def test_a_crash_during_a_call_and_a_restart(connect: Connect) -> None:
    client = connect(raw=[])
    client.take_notices()
    assert call(client, "exit") == "error: MCP server raw: exited with code 3"
    assert client.take_notices() == ["MCP server raw: exited with code 3"]
    assert client.tools() == {}
    client.restart("raw")
    client.wait_until_started(lambda *_: None)
    assert call(client, "echo", text="x") == "echo: x"
    assert (paths.mcp_logs_dir() / "raw.log").read_text() == "about to exit\n"


def test_a_crash_between_calls_is_noticed(connect: Connect, tmp_path: Path) -> None:
    client = connect(raw=["", str(tmp_path / "pids")])
    client.take_notices()
    os.kill(int((tmp_path / "pids").read_text()), signal.SIGKILL)
    wait_for(lambda: client.servers[0].state == "ended")
    assert client.take_notices() == ["MCP server raw: was killed by signal 9"]


def test_a_call_that_hangs(connect: Connect, tmp_path: Path) -> None:
    client = connect(raw=["", str(tmp_path / "log")])
    assert call(client, "hang", seconds=0.5) == "error: no result within 0.5 s"
    wait_for(lambda: "cancelled" in (tmp_path / "log").read_text())
    assert call(client, "echo", text="x") == "echo: x"


def test_an_interrupt_cancels_a_call(connect: Connect, tmp_path: Path) -> None:
    client = connect(raw=["", str(tmp_path / "log")])
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        call(client, "hang", seconds=60)
    wait_for(lambda: "cancelled" in (tmp_path / "log").read_text())
    assert call(client, "echo", text="x") == "echo: x"


@pytest.mark.parametrize(
    ("tool", "problem"),
    [("flood", "sent more than 500 messages within 10 s"), ("endless_line", "sent a message of more than 1 MiB")],
)
def test_floods(connect: Connect, monkeypatch: pytest.MonkeyPatch, tool: str, problem: str) -> None:
    monkeypatch.setattr(streams, "MAX_MESSAGES", 500)
    monkeypatch.setattr(stdio_transport, "LINE_LIMIT", 1 << 20)
    client = connect(bad=[], good=[])
    client.take_notices()
    assert call(client, f"bad__{tool}", seconds=60) == f"error: MCP server bad: {problem}"
    assert client.take_notices() == [f"MCP server bad: {problem}"]
    assert call(client, "echo", text="x") == "echo: x"


def test_changed_tools(connect: Connect) -> None:
    client = connect(raw=[])
    client.take_notices()
    call(client, "change_tools")
    wait_for(lambda: "added" in client.tools())
    wait_for(lambda: "MCP server raw: its tools have changed: +added" in client.take_notices())


def test_requests_of_a_server_are_refused(connect: Connect) -> None:
    client = connect(raw=[])
    client.take_notices()
    for _ in range(2):
        assert call(client, "ask").count('"error"') == 3
    assert client.take_notices() == [
        f"MCP server raw: asked for {what}, which the chat does not offer"
        for what in ("sampling", "roots", "elicitation")
    ]


# --- processes ---


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_stubborn_server_ends_with_its_children(connect: Connect, tmp_path: Path) -> None:
    client = connect(bad=["stubborn", str(tmp_path / "pids")])
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    client.close()
    wait_for(lambda: all(map(has_ended, pids)), 5)


PARENT = """
import os, signal, sys, time
from localinfer.mcp.client.client import McpClient
from localinfer.mcp.client.server_config import parse_servers

entry = {"command": sys.executable, "args": sys.argv[1:]}
client = McpClient(parse_servers({"mcpServers": {"raw": entry}}, "test", os.environ))
client.wait_until_started(lambda *_: None)
print(client.servers[0].state, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent was killed")
def test_no_server_survives_a_killed_client(tmp_path: Path) -> None:
    """The server ignores the end of its stdin."""
    command = [sys.executable, "-c", PARENT, RAW, "stubborn", str(tmp_path / "pids")]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert parent.stdout
    assert parent.stdout.readline() == b"ready\n"
    server, child = (int(line) for line in (tmp_path / "pids").read_text().split())
    assert not has_ended(server)
    parent.kill()
    parent.communicate()
    wait_for(lambda: has_ended(server), 5)
    os.kill(child, signal.SIGKILL)  # a child of the server that keeps running by itself is beyond reach
