"""The connection to one MCP server: it starts or reaches the server, reads its tools and calls them.

All of it runs in one task of an event loop, and calls in tasks of their own. It updates the state of its `Server`.
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp_types import Implementation, Tool, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from localinfer.escaping import printable
from localinfer.mcp.client.server_log import ServerLog
from localinfer.mcp.client.server_state import Server, ServerTool
from localinfer.mcp.client.stdio_transport import ServerProcess, stdio_transport
from localinfer.mcp.client.streams import Inspector, ServerFault, Streams, inspected
from localinfer.mcp.client.tool_names import TOOL_NAME
from localinfer.mcp.client.tool_results import result_text
from localinfer.version import VERSION

START_SECONDS = 30.0  # for a server to start and to list its tools
RELOAD_SECONDS = 1.0  # between two readings of a list of tools that changes
MAX_PAGES, MAX_TOOLS = 50, 500
MAX_DESCRIPTION = 4000  # characters
PROBLEM_LENGTH = 200  # characters of the message of a server
REFUSED_REQUESTS = {  # what a server may ask for, and this client does not offer
    "sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots",
}  # fmt: skip


class Connection:
    """The connection to a server, which `run` keeps. `notify` is called with lines for the user."""

    def __init__(self, server: Server, notify: Callable[[str], None]) -> None:
        self.server = server
        self.process: ServerProcess | None = None
        self._notify = notify
        self._client: Client | None = None
        self._wakeup = asyncio.Event()
        self._is_closing = self._is_stale = False
        self._refused: set[str] = set()
        self._fault = ""  # why the connection that is being made has ended

    async def run(self) -> None:
        """Connect, and stay connected until `close` or until the server ends."""
        kinds = self.server.config.transport.split(" or ")
        try:
            for kind in kinds:
                try:
                    await self._stay_connected(kind)
                    break
                except* MCPError:  # an older server answers only to SSE
                    if kind == kinds[-1] or self.server.state == "ready":
                        raise
            self._end("was stopped")
        except Exception as error:  # whatever a server brings about
            self._end(self._fault or (str(error) if isinstance(error, ServerFault) else problem_of(error)))

    def close(self) -> None:
        self._is_closing = True
        self._wakeup.set()

    async def call(self, tool: ServerTool, arguments: dict[str, Any], seconds: float) -> str:
        """Call a tool and return its result, or an error message for the model. Cancelling it cancels the call."""
        if self._client is None or self.server.state != "ready":
            return f"error: MCP server {self.server.name}: {self.server.problem or 'is not ready'}"
        try:
            with anyio.fail_after(seconds):
                return result_text(await self._client.call_tool(tool.name, arguments))
        except TimeoutError:
            return f"error: no result within {seconds:g} s"
        except Exception as error:  # also an answer that is not valid
            await anyio.sleep(0)  # the end of the connection may have a better reason
            reason = self.server.problem
            return f"error: MCP server {self.server.name}: {reason or problem_of(error)}"

    def _transport(self, kind: str, log: ServerLog) -> AbstractAsyncContextManager[Streams]:
        if kind == "stdio":
            return stdio_transport(self.server.config, log, self._note_process)
        from localinfer.mcp.client.http_transport import url_transport

        return url_transport(self.server.config, "sse" if kind == "sse" else "http")

    def _note_process(self, process: ServerProcess) -> None:
        self.process = process

    async def _stay_connected(self, kind: str) -> None:
        log = ServerLog(self.server.name)
        transport = inspected(self._transport(kind, log), Inspector(self._refuse, self._lose))
        client = Client(
            transport, message_handler=self._receive, client_info=Implementation(name="localinfer", version=VERSION)
        )
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + START_SECONDS) as scope:
                async with client, anyio.create_task_group() as tasks:
                    await self._load_tools(client)
                    scope.deadline = math.inf
                    self._client, self.server.state = client, "ready"
                    info = client.server_info
                    self.server.title = printable(f"{info.name} {info.version}".strip(), 80) if info else ""
                    tasks.start_soon(self._listen, client)
                    await self._work(client)
                    tasks.cancel_scope.cancel()
            if scope.cancelled_caught:
                raise ServerFault(f"did not start within {START_SECONDS:g} s")
        finally:
            self._client = None
            log.close()

    async def _work(self, client: Client) -> None:
        """Wait for the end of the connection, and read the list of tools again when it has changed."""
        while not self._is_closing:
            await self._wakeup.wait()
            self._wakeup.clear()
            if self._is_stale and not self._is_closing:
                self._is_stale = False
                await self._reload_tools(client)

    async def _reload_tools(self, client: Client) -> None:
        before = {each.name: each.fingerprint for each in self.server.tools}
        try:
            with anyio.fail_after(START_SECONDS):
                await self._load_tools(client)
        except (MCPError, TimeoutError, ValueError) as error:
            self._note(f"its list of tools cannot be read again: {problem_of(error)}")
            return
        after = {each.name: each.fingerprint for each in self.server.tools}
        if changes := [*changed_names(before, after)]:
            self._note(f"its tools have changed: {printable(' '.join(changes), PROBLEM_LENGTH)}")
        await anyio.sleep(RELOAD_SECONDS)

    async def _load_tools(self, client: Client) -> None:
        """Read the list of tools."""
        if client.server_capabilities.tools is None:
            return
        listed: list[Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="refresh")
            listed += page.tools
            cursor = page.next_cursor
            if cursor is None or len(listed) >= MAX_TOOLS:
                break
        valid: dict[str, Tool] = {}  # by name: the first one of two counts
        for each in listed:
            if TOOL_NAME.fullmatch(each.name):
                valid.setdefault(each.name, each)
        if left_out := len(listed) - len(valid):
            self._note(f"{left_out} of its tools are left out: their names are invalid, or those of other tools")
        if len(valid) > MAX_TOOLS or cursor is not None:
            self._note(f"only its first {MAX_TOOLS} tools are used")
        self.server.tools = [
            ServerTool(self.server.name, each.name, describe(each), each.input_schema)
            for each in [*valid.values()][:MAX_TOOLS]
        ]

    async def _listen(self, client: Client) -> None:
        """Wait for changes of the list of tools, where the protocol of 2026-07-28 needs a request for it."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools and tools.list_changed):
            return
        try:
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._mark_stale()
        except (MCPError, RuntimeError, TimeoutError):  # the server does not tell changes
            return

    async def _receive(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._mark_stale()

    def _mark_stale(self) -> None:
        self._is_stale = True
        self._wakeup.set()

    def _refuse(self, method: str) -> None:
        """Note a request of the server, which the library refuses."""
        if method in REFUSED_REQUESTS and method not in self._refused:
            self._refused.add(method)
            self._note(f"asked for {REFUSED_REQUESTS[method]}, which the chat does not offer")

    def _note(self, text: str) -> None:
        self._notify(f"MCP server {self.server.name}: {text}")

    def _lose(self, fault: str) -> None:
        """Note that the connection is lost. While it is being made, the next request fails."""
        if self.server.state == "ready":
            self._end(fault or "closed the connection")
        else:
            self._fault = fault

    def _end(self, problem: str) -> None:
        """Note that the connection has ended. The first reason counts."""
        if self.server.state != "ended":
            self.server.state, self.server.problem, self.server.tools = "ended", problem, []
            if not self._is_closing:
                self._note(problem)
        self.close()


def describe(tool: Tool) -> str:
    text = tool.description or tool.title or ""
    return text if len(text) <= MAX_DESCRIPTION else f"{text[:MAX_DESCRIPTION]}..."


def changed_names(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """Yield +NAME for a new tool, -NAME for one that is gone, and NAME for one with another definition."""
    for name in sorted(before | after):
        if before.get(name) != after.get(name):
            yield f"{'' if name in before and name in after else '+' if name in after else '-'}{name}"


def problem_of(error: BaseException) -> str:
    """Return the message of an error in one line; that of the first one of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    message = printable(" ".join(str(error).split()), PROBLEM_LENGTH)
    if isinstance(error, MCPError):
        return f"answered with an error: {message}"
    return f"failed: {message or type(error).__name__}"
