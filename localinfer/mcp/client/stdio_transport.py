"""A transport to an MCP server that is a child process: one JSON message per line of its stdin and stdout.

In contrast to that of the library, it limits the length of a line, and the process ends with this one, even if this one
is killed. What the server writes to stderr, and lines of stdout that are no messages, go to a log file of limited size.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from localinfer.mcp.client.server_config import ServerConfig
from localinfer.mcp.client.server_log import ServerLog
from localinfer.mcp.client.streams import ServerFault, Streams

POLL_SECONDS = 0.01
PIPE = asyncio.subprocess.PIPE
LINE_LIMIT = 16 << 20  # bytes
MAX_OTHER_LINES = 1000  # lines that are no messages
LOGGED_BYTES = 200  # of such a line
EXIT_SECONDS, TERMINATE_SECONDS = 2.0, 1.0  # to end after stdin was closed, and after SIGTERM
# Linux kills the server when this process has ended, also by SIGKILL; the setting survives `exec`. Elsewhere, the end
# of its stdin tells the server.
EXEC_WITH_PARENT = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
try: os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error: sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


class ServerProcess:
    """The process of a server, and the processes that it started: a group of their own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    @classmethod
    async def start(cls, config: ServerConfig) -> "ServerProcess":
        """Start the server. Raises ServerFault."""
        environment = get_default_environment() | dict(config.env)
        if config.cwd is not None and not os.path.isdir(config.cwd):  # noqa: PTH112  # one call, before the process starts
            raise ServerFault(f"cwd: no such directory: {config.cwd}")
        program = shutil.which(config.command[0], path=environment.get("PATH"))
        if program is None:
            raise ServerFault(f"no such command: {config.command[0]}")
        command = [os.path.abspath(program), *config.command[1:]]  # noqa: PTH100  # without resolving links
        if sys.platform == "linux" and sys.executable:
            command = [sys.executable, "-I", "-S", "-c", EXEC_WITH_PARENT, str(os.getpid()), *command]
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, cwd=config.cwd, start_new_session=True,
                limit=LINE_LIMIT,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise ServerFault(f"cannot be started: {getattr(error, 'strerror', None) or error}") from None
        return cls(process)

    async def end(self) -> None:
        """Close stdin, and end the process and its children if they do not end by themselves."""
        self.stdin.close()
        if not await self._has_exited(EXIT_SECONDS):
            self.signal("SIGTERM")
            await self._has_exited(TERMINATE_SECONDS)
        self.signal("SIGKILL")  # also children that have outlived the server
        await self._has_exited(TERMINATE_SECONDS)
        # Nothing public closes the pipes, which a process that another session adopted may keep open.
        self._process._transport.close()  # type: ignore[attr-defined]

    async def _has_exited(self, seconds: float) -> bool:
        """Wait up to `seconds`. `Process.wait` would also wait for the end of the pipes, which children may have."""
        end = time.monotonic() + seconds
        while self._process.returncode is None and time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)
        return self._process.returncode is not None

    def signal(self, name: str) -> None:
        """Send a signal to all processes of the group. Windows has none: the process and its children are killed."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, getattr(signal, name))
            return
        kill_with_children(self._process.pid)

    async def ending(self) -> str:
        """Return how the process has ended, which its closed stdout told."""
        await self._has_exited(TERMINATE_SECONDS)
        code = self._process.returncode
        if code is None:
            return "closed its stdout"
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


def kill_with_children(pid: int) -> None:
    import psutil  # imported late: other systems do not need it

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                each.kill()


@asynccontextmanager
async def stdio_transport(
    config: ServerConfig, log: ServerLog, started: Callable[[ServerProcess], None]
) -> AsyncIterator[Streams]:
    """Start a server, pass its process to `started`, and yield the streams of its messages.

    The stream of received messages raises ServerFault when the server has ended or misbehaves.
    """
    process = await ServerProcess.start(config)
    started(process)
    received_send, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, sent_receive = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with received_send:
            try:
                async for message in messages(process, log):
                    await received_send.send(message)
                fault = ServerFault(await process.ending())
            except ServerFault as error:
                fault = error
            await received_send.send(fault)

    async def write() -> None:
        async with sent_receive:
            async for each in sent_receive:
                line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(line.encode() + b"\n")
                await process.stdin.drain()

    async def write_log() -> None:
        while chunk := await process.stderr.read(1 << 16):
            log.write(chunk)

    async def until_closed(work: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await work()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_closed, read)
            tasks.start_soon(until_closed, write)
            tasks.start_soon(until_closed, write_log)
            try:
                yield received, sent
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await process.end()


async def messages(process: ServerProcess, log: ServerLog) -> AsyncIterator[SessionMessage]:
    """Yield the messages that a server writes. Other lines go to the log. Raises ServerFault."""
    n_other = 0
    while True:
        try:
            line = await process.stdout.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            raise ServerFault(f"sent a message of more than {LINE_LIMIT >> 20} MiB") from None
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            n_other += bool(line.strip())
            log.write(b"stdout: " + line.strip()[:LOGGED_BYTES] + b"\n")
            if n_other > MAX_OTHER_LINES:
                raise ServerFault("writes text to stdout that is no message of MCP") from None
            continue
        yield SessionMessage(message)
