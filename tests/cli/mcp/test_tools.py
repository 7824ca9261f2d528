"""`localinfer mcp-tools`: the tools of the servers in a configuration file."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from locations import TESTS

Run = Callable[..., CompletedProcess[bytes]]

pytest.importorskip("mcp")


@pytest.fixture
def servers(tmp_path: Path, environment: dict[str, str]) -> Path:
    environment["LOCALINFER_CACHE_DIR"] = str(tmp_path / "cache")
    server = str(TESTS / "harness" / "raw_mcp_server.py")
    entries = {"raw": {"command": sys.executable, "args": [server]}}
    (tmp_path / "one.json").write_text(json.dumps({"mcpServers": entries}))
    failing = {"bad": {"command": sys.executable, "args": [server, "exits"]}}
    (tmp_path / "two.json").write_text(json.dumps({"mcpServers": entries | failing}))
    return tmp_path


def test_the_tools_of_a_file(fake_cli: Run, servers: Path) -> None:
    done = fake_cli("mcp-tools", str(servers / "one.json"))
    title, echo, *_ = done.stdout.decode().splitlines()
    assert (done.returncode, title, echo) == (0, r"raw (raw 1\x1b[31m): 13 tools", "  echo  The tool echo")
    assert done.stderr.startswith(b"warning: MCP server raw: 2 of its tools are left out")


def test_json_and_a_server_that_does_not_start(fake_cli: Run, servers: Path) -> None:
    done = fake_cli("mcp-tools", str(servers / "two.json"), "--json")
    raw, bad = json.loads(done.stdout)["servers"]
    assert (raw["state"], raw["tools"][0]["name"], raw["tools"][0]["parameters"]["type"]) == ("ready", "echo", "object")
    assert (bad["state"], bad["problem"], bad["tools"]) == ("ended", "exited with code 7", [])
    assert done.returncode == 1
    assert done.stderr.decode().endswith("error: 1 of 2 MCP servers did not start\n")
    done = fake_cli("mcp-tools", str(servers / "two.json"))
    assert f"the log of bad: {servers / 'cache' / 'mcp' / 'bad.log'}\n" in done.stderr.decode()


def test_invalid_files(fake_cli: Run, servers: Path) -> None:
    (servers / "bad.json").write_text("{")
    done = fake_cli("mcp-tools", str(servers / "bad.json"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"bad.json: not valid JSON" in done.stderr
