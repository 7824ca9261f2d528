"""What is known about an MCP server: whether it runs, and its tools. This module does not need the library `mcp`."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from localinfer.mcp.client.server_config import ServerConfig

State = Literal["starting", "ready", "ended"]


@dataclass(frozen=True)
class ServerTool:
    """A tool of a server, with the name that the server gave it."""

    server: str
    name: str
    description: str
    parameters: Mapping[str, Any]  # a JSON schema

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the definition: consent to a tool does not apply to another definition."""
        definition = [self.server, self.name, self.description, self.parameters]
        return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


@dataclass
class Server:
    """The state of a server. `problem` tells why it has ended."""

    config: ServerConfig
    state: State = "starting"
    problem: str = ""
    tools: list[ServerTool] = field(default_factory=list)
    title: str = ""  # name and version, as the server tells them

    @property
    def name(self) -> str:
        return self.config.name
