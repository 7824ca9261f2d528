"""Configuration files of MCP servers, as other programs write them."""

import json
from pathlib import Path

import pytest

from localinfer.errors import UsageError
from localinfer.mcp.client.server_config import ServerConfig, parse_servers, read_servers

ENVIRONMENT = {"KEY": "secret", "EMPTY": ""}


def parsed(entry: object) -> ServerConfig:
    [config] = parse_servers({"mcpServers": {"files": entry}}, "s.json", ENVIRONMENT)
    return config


def test_a_command() -> None:
    config = parsed({"command": "npx", "args": ["-y", "server", "${KEY}"], "env": {"A": "${env:KEY}!", "N": 5}})
    assert config == ServerConfig(
        name="files", transport="stdio", command=("npx", "-y", "server", "secret"), env={"A": "secret!", "N": "5"}
    )


@pytest.mark.parametrize(
    ("kind", "transport"),
    [({}, "http or sse"), ({"type": "http"}, "http"), ({"type": "streamable-http"}, "http"), ({"type": "sse"}, "sse"),
     ({"transport": "sse"}, "sse")],
)  # fmt: skip
def test_a_url(kind: dict[str, str], transport: str) -> None:
    config = parsed({"url": "https://x.org/mcp", "headers": {"Authorization": "Bearer ${KEY}"}, **kind})
    assert (config.transport, config.url) == (transport, "https://x.org/mcp")
    assert config.headers == {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [("${KEY}", "secret"), ("${NONE:-x y}", "x y"), ("${NONE:-}", ""), ("${EMPTY:-x}", "x"), ("${EMPTY}", ""),
     ("$KEY", "$KEY"), ("a${KEY}${KEY}", "asecretsecret"), ("${userHome}/x", f"{Path.home()}/x"),
     ("${workspaceFolder}", str(Path.cwd()))],
)  # fmt: skip
def test_variables(text: str, expanded: str) -> None:
    assert parsed({"command": "x", "args": [text]}).command == ("x", expanded)


def test_files_of_other_programs() -> None:
    """VS Code has `servers` and `inputs`; other keys concern other programs; disabled servers are left out."""
    value = {
        "servers": {
            "a": {"type": "stdio", "command": "x", "alwaysAllow": ["y"]}, "b": {"command": "x", "disabled": True}
        },
        "inputs": [],
    }
    assert [each.name for each in parse_servers(value, "mcp.json", {})] == ["a"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ([], "must be an object"),
        ({}, "needs a command or a url"),
        ({"command": ""}, "command: must not be empty"),
        ({"command": ["x"]}, "command: must be a string"),
        ({"command": "x", "args": "y"}, "args: must be a list of strings"),
        ({"command": "x", "args": [5]}, "args: must be a string"),
        ({"command": "x", "env": []}, "env: must be an object of strings"),
        ({"command": "x", "env": {"A=B": "c"}}, "env: invalid name 'A=B'"),
        ({"command": "x", "args": ["${NONE}"]}, "args: the environment variable NONE is not set"),
        ({"command": "x", "args": ["${input:key}"]}, r"args: \$\{input:key\} is not supported"),
        ({"url": "ftp://x"}, "url: must be an address"),
        ({"url": "http://[::1"}, "url: must be an address"),
        ({"url": "http://x", "type": "stdio"}, "type: must be http or sse"),
        ({"url": "http://x", "type": ["sse"]}, "type: must be http or sse"),
        ({"url": "http://x", "headers": {"A": "b\nC: d"}}, "headers: A: not a valid HTTP header"),
    ],
)
def test_invalid_entries(entry: object, problem: str) -> None:
    with pytest.raises(UsageError, match=f"^s.json: files: {problem}"):
        parsed(entry)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not valid JSON"), (b"\xff", "not valid JSON"), (b"[" * 100_000, "not valid JSON"),
        (b"[]", "must be an object with the key mcpServers"), (b'{"mcpServers": []}', "must be an object with the key"),
        (b" " * 2_000_000, "larger than"), (json.dumps({"mcpServers": {"a\x1b": {}}}).encode(), "a name has 1 to 64"),
    ],
)  # fmt: skip
def test_invalid_files(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "servers.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=problem) as raised:
        read_servers(path)
    assert str(raised.value).startswith(str(path))
    assert "\x1b" not in str(raised.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_servers(tmp_path / "servers.json")


def test_secrets_are_not_in_errors() -> None:
    with pytest.raises(UsageError) as raised:
        parsed({"command": "x", "args": ["${KEY} ${NONE}"]})
    assert "secret" not in str(raised.value)
