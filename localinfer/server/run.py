"""The application on a port: from its opening until the last answer is given."""

import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from localinfer.errors import LocalInferError
from localinfer.server.connection import Connection
from localinfer.server.settings import Settings
from localinfer.text import printable

KEEP_ALIVE = 30  # seconds that a connection may be idle
MOST_CONNECTIONS = 1000


class Server(uvicorn.Server):
    """Ends in peace: a first signal lets answers finish, a second one does not."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self, *_: object) -> None:
        if self.should_exit:
            self.force_exit = True
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it prints where each answer is cut off
        self.should_exit = True


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[socket.socket]:
    """The port, or the Unix socket, so that nobody else has it; LocalInferError where somebody has it already."""
    place = settings.host if settings.is_path else f"{settings.host}:{settings.port}"
    opener = on_path if settings.is_path else on_port
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(opener(settings))
            opened.listen(128)
        except OSError as error:
            raise LocalInferError(f"{printable(place)}: {error.strerror or error}") from None
        yield opened


@contextlib.contextmanager
def on_port(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((settings.host, settings.port))
        yield opened


@contextlib.contextmanager
def on_path(settings: Settings) -> Iterator[socket.socket]:
    """For this user alone. What a server has left there that was killed is replaced; anything else stays."""
    path = Path(settings.host)
    with socket.socket(socket.AF_UNIX) as opened:
        if is_left(path):
            path.unlink()
        before = os.umask(0o177)
        try:
            opened.bind(settings.host)
        finally:
            os.umask(before)
        try:
            yield opened
        finally:
            path.unlink(missing_ok=True)


def is_left(path: Path) -> bool:
    """Whether this is a socket at which nobody listens any more."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(str(path)) == errno.ECONNREFUSED


def serve(app: ASGIApp, opened: socket.socket, ready: Callable[[], None]) -> None:
    """Until a signal comes, and what was being answered then is answered."""
    config = uvicorn.Config(
        app, http=Connection, log_level="error", access_log=False, lifespan="on", ws="none", server_header=False,
        timeout_keep_alive=KEEP_ALIVE, limit_concurrency=MOST_CONNECTIONS,
    )  # fmt: skip
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every client that leaves in the midst
    server = Server(config)
    ready()
    server.run(sockets=[opened])
