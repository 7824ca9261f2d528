"""The application on a port: from its opening until the last answer is given."""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from localinfer.errors import LocalInferError
from localinfer.server.settings import Settings

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
        self.force_exit = self.should_exit
        self.should_exit = True


def listening(settings: Settings) -> socket.socket:
    """The port, so that nobody else has it; LocalInferError where somebody has it already."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    opened = socket.socket(family)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((settings.host, settings.port))
        opened.listen(128)
    except OSError as error:
        opened.close()
        raise LocalInferError(f"{settings.host}:{settings.port}: {error.strerror or error}") from None
    return opened


def serve(app: ASGIApp, opened: socket.socket, ready: Callable[[], None]) -> None:
    """Until a signal comes, and what was being answered then is answered."""
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="on", ws="none", server_header=False,
        timeout_keep_alive=KEEP_ALIVE, limit_concurrency=MOST_CONNECTIONS,
    )  # fmt: skip
    server = Server(config)
    ready()
    server.run(sockets=[opened])
