"""Configuration of MCP servers: a JSON file as Claude Desktop, Cursor and VS Code write it.

    {"mcpServers": {"NAME": {"command": "npx", "args": [...], "env": {...}, "cwd": "..."}}}
    {"mcpServers": {"NAME": {"url": "https://...", "headers": {...}, "type": "http"}}}

Texts may contain ${VARIABLE}, ${VARIABLE:-default} and ${env:VARIABLE}. Keys that only concern other programs are
ignored.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlsplit

from localinfer.errors import UsageError
from localinfer.escaping import printable

FILE_LIMIT = 1 << 20  # bytes
SERVER_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,64}")
VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
OTHER_VARIABLE = re.compile(r"\$\{([^}]*)\}")
LIST_KEYS = ("mcpServers", "servers")

Transport = Literal["stdio", "http", "sse", "http or sse"]
URL_TRANSPORTS: dict[object, Transport] = {
    None: "http or sse", "http": "http", "streamable-http": "http", "streamableHttp": "http", "streamable_http": "http",
    "sse": "sse",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How to start or to reach an MCP server: by `command`, or at `url`."""

    name: str
    transport: Transport
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def read_servers(path: Path, environ: Mapping[str, str] = os.environ) -> list[ServerConfig]:
    """Read the servers of a file. Raises UsageError that names the file, the server and the key."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT + 1)
        if len(content) > FILE_LIMIT:
            raise UsageError(f"{path}: larger than {FILE_LIMIT:,} bytes")
        value = json.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid JSON: {printable(str(error), 200)}") from None
    return parse_servers(value, str(path), environ)


def parse_servers(value: object, where: str, environ: Mapping[str, str]) -> list[ServerConfig]:
    """Validate the content of a file. Servers that are `disabled` are left out."""
    listed = [value[key] for key in LIST_KEYS if key in value] if isinstance(value, dict) else []
    if not listed or not isinstance(listed[0], dict):
        raise UsageError(f"{where}: must be an object with the key mcpServers, an object of servers by name")
    return [
        parse_server(name, entry, f"{where}: {printable(name, 80)}", environ)
        for name, entry in listed[0].items()
        if not (isinstance(entry, dict) and entry.get("disabled") is True)
    ]


def parse_server(name: str, entry: object, where: str, environ: Mapping[str, str]) -> ServerConfig:
    if not SERVER_NAME.fullmatch(name):
        raise UsageError(f"{where}: a name has 1 to 64 characters, and no control characters")
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: must be an object")
    reader = EntryReader(entry, where, environ)
    if "command" in entry:
        command = reader.text("command")
        if not command:
            raise UsageError(f"{where}: command: must not be empty")
        return ServerConfig(
            name=name, transport="stdio", command=(command, *reader.texts("args")), env=reader.table("env"),
            cwd=os.path.expanduser(reader.text("cwd")) or None,  # noqa: PTH111  # an unknown ~user stays as it is
        )  # fmt: skip
    if "url" not in entry:
        raise UsageError(f"{where}: needs a command or a url")
    kind = entry.get("type", entry.get("transport"))
    if kind is not None and (not isinstance(kind, str) or kind not in URL_TRANSPORTS):
        raise UsageError(f"{where}: type: must be http or sse for a server with a url")
    url = reader.text("url")
    if not is_web_address(url):
        raise UsageError(f"{where}: url: must be an address that begins with http:// or https://")
    return ServerConfig(name=name, transport=URL_TRANSPORTS[kind], url=url, headers=reader.headers())


def is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        return False


class EntryReader:
    """Reads texts of the entry of a server, and replaces variables in them."""

    def __init__(self, entry: Mapping[str, object], where: str, environ: Mapping[str, str]) -> None:
        self._entry, self._where, self._environ = entry, where, environ

    def text(self, key: str) -> str:
        value = self._entry.get(key)
        return "" if value is None else self._expand(value, key)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._entry.get(key)
        if value is not None and not isinstance(value, list):
            raise UsageError(f"{self._where}: {key}: must be a list of strings")
        return tuple(self._expand(each, key) for each in value or ())

    def table(self, key: str) -> dict[str, str]:
        value = self._entry.get(key)
        if value is not None and not isinstance(value, dict):
            raise UsageError(f"{self._where}: {key}: must be an object of strings")
        names = cast("dict[str, object]", value or {})
        for name in names:
            if not name or "=" in name or "\0" in name:
                raise UsageError(f"{self._where}: {key}: invalid name {printable(repr(name), 80)}")
        return {
            name: self._expand(each if isinstance(each, str) else json.dumps(each), f"{key}: {printable(name, 80)}")
            for name, each in names.items()
        }

    def headers(self) -> dict[str, str]:
        table = self.table("headers")
        for name, value in table.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[\t -~]*", value):
                raise UsageError(f"{self._where}: headers: {printable(name, 80)}: not a valid HTTP header")
        return table

    def _expand(self, value: object, key: str) -> str:
        """Replace variables. The message of an error has their names, not their values, which may be secrets."""
        if not isinstance(value, str) or "\0" in value:
            raise UsageError(f"{self._where}: {key}: must be a string")

        def replace(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            if name == "userHome":
                return str(Path.home())
            if name == "workspaceFolder":
                return str(Path.cwd())
            actual = self._environ.get(name) or default  # an empty variable has the default, as in a shell
            if actual is None and name not in self._environ:
                raise UsageError(f"{self._where}: {key}: the environment variable {name} is not set")
            return actual or ""

        if other := OTHER_VARIABLE.search(VARIABLE.sub("", value)):
            raise UsageError(f"{self._where}: {key}: {printable(other[0], 40)} is not supported, only ${{VARIABLE}}")
        return VARIABLE.sub(replace, value)
