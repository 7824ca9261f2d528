"""`McpClient`: several MCP servers, for callers that are not asynchronous. It has a thread with an event loop.

The library `mcp` is imported in this thread, because that takes a second.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import CancelledError, Future, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from localinfer.mcp.client.server_config import ServerConfig
from localinfer.mcp.client.server_state import Server, ServerTool
from localinfer.mcp.client.tool_names import visible_tools

if TYPE_CHECKING:
    from localinfer.mcp.client.connection import Connection

POLL_SECONDS = 0.1  # between two looks at what another thread does: Ctrl-C reaches a waiting thread on every system
CLOSE_SECONDS = 6.0  # for all servers to end; then they are killed
SILENT_LOGGERS = ("mcp", "mcp_types", "httpx2", "httpcore2", "asyncio")  # a server can make them write to stderr
MAX_NOTICES = 50

T = TypeVar("T")


class McpClient:
    """Connections to servers, which start when it is created, and end with it.

    `servers` have the state of each. `take_notices` returns what the user should know.
    """

    def __init__(self, configs: Sequence[ServerConfig]) -> None:
        self.servers = [Server(config) for config in configs]
        self._notices: list[str] = []
        self._connections: dict[str, Connection] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        for name in SILENT_LOGGERS:
            logging.getLogger(name).addHandler(logging.NullHandler())
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)
        self._thread = threading.Thread(target=self._run_loop, name="mcp", daemon=True)
        self._thread.start()
        for server in self.servers:
            self._submit(self._start(server))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def tools(self, taken: Collection[str] = ()) -> dict[str, ServerTool]:
        """Return the tools of all servers that are ready, by the names that the model sees: see `visible_tools`."""
        return visible_tools((tool for server in self.servers for tool in [*server.tools]), taken)

    def wait_until_started(self, progress: Callable[[list[str], int], None]) -> None:
        """Wait until every server is ready or has ended. `progress` gets the names of the others, and the number of all
        servers.
        """
        pause = threading.Event()
        while waiting := [server.name for server in self.servers if server.state == "starting"]:
            progress(waiting, len(self.servers))
            pause.wait(POLL_SECONDS)

    def call(self, tool: ServerTool, arguments: dict[str, Any], seconds: float) -> str:
        """Call a tool and return its result as text, or an error message for the model.

        KeyboardInterrupt cancels the call.
        """

        async def call() -> str:
            return await self._connections[tool.server].call(tool, arguments, seconds)

        return self._wait(self._submit(call()))

    def restart(self, name: str) -> None:
        """Stop a server and start it again. `wait_until_started` waits for it."""
        server = next(each for each in self.servers if each.name == name)
        self._wait(self._submit(self._stop(name)))
        server.state, server.problem, server.tools, server.title = "starting", "", [], ""
        self._submit(self._start(server))

    def take_notices(self) -> list[str]:
        """Return the lines for the user since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def close(self) -> None:
        """End all servers. Whatever interrupts this, their processes are killed."""
        if not self._thread.is_alive():
            return
        try:
            with contextlib.suppress(TimeoutError, CancelledError):
                self._submit(self._stop_all()).result(CLOSE_SECONDS)
        finally:
            for connection in [*self._connections.values()]:
                if connection.process and not self._tasks[connection.server.name].done():
                    connection.process.signal("SIGKILL")
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, future: Future[T]) -> T:
        try:
            while not future.done():
                wait([future], POLL_SECONDS)
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _notify(self, line: str) -> None:
        if len(self._notices) < MAX_NOTICES:
            self._notices.append(line)

    async def _start(self, server: Server) -> None:
        try:
            from localinfer.mcp.client.connection import Connection
        except BaseException as error:
            server.state, server.problem = "ended", f"cannot be used: {error}"
            self._notify(f"MCP server {server.name}: {server.problem}")
            raise
        connection = self._connections[server.name] = Connection(server, self._notify)
        self._tasks[server.name] = asyncio.get_running_loop().create_task(connection.run())

    async def _stop(self, name: str) -> None:
        if connection := self._connections.get(name):
            connection.close()
            task = self._tasks[name]
            if connection.server.state == "starting":
                task.cancel()
            await asyncio.wait([task])

    async def _stop_all(self) -> None:
        await asyncio.gather(*(self._stop(name) for name in [*self._connections]))
