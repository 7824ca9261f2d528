"""Runs the ASGI application with uvicorn on a port or a Unix socket."""

import contextlib
import errno
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.server.http.connection import Connection
from localinfer.server.settings import Settings
from localinfer.server.startup import Startup

ANSWER_SECONDS = 2  # that running answers have after a signal
EXIT_SECONDS = 2.8  # after the first signal, until the process ends in any case
FORCED_EXIT_SECONDS = 0.2  # the same after the second signal
KEEP_ALIVE = 30  # seconds until an idle connection is closed
MAX_CONNECTIONS = 1000
STOP_SIGNALS = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]


class Server(uvicorn.Server):
    """A uvicorn server with graceful shutdown: the first signal waits a little for running responses, the second aborts
    them, the third kills the process.

    Native code that does not return cannot keep the process alive: a thread ends it after EXIT_SECONDS.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self.handle_signal) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_signal(self, number: int, _: object) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it logs aborted responses
        seconds = EXIT_SECONDS
        if self.should_exit:
            self.force_exit, seconds = True, FORCED_EXIT_SECONDS
            signal.signal(number, signal.SIG_DFL)
        self.should_exit = True
        timer = threading.Timer(seconds, os._exit, [128 + number])
        timer.daemon = True
        timer.start()


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[list[socket.socket]]:
    """Open and listen on the Unix socket, or on the same port of all addresses. Raises LocalInferError if it is in use
    or cannot be opened.
    """
    listeners: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for host in settings.hosts:
            port = listeners[0].getsockname()[1] if listeners else settings.port
            try:
                bound = bind_unix_socket(host) if settings.is_unix_socket else bind_port(host, port)
                listeners.append(stack.enter_context(bound))
                listeners[-1].listen(128)
            except OSError as error:
                address = host if settings.is_unix_socket else f"{host}:{port}"
                raise LocalInferError(f"{printable(address)}: {error.strerror or error}") from None
        yield listeners


@contextlib.contextmanager
def bind_port(host: str, port: int) -> Iterator[socket.socket]:
    """Bind a TCP socket to a host and a port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        # On Windows, SO_REUSEADDR would let a second server use the same port.
        exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR if exclusive is None else exclusive, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        yield listener


@contextlib.contextmanager
def bind_unix_socket(host: str) -> Iterator[socket.socket]:
    """Bind a Unix socket that only this user can access.

    Replaces the stale socket of a killed server. Raises OSError if the path is in use or another kind of file.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise LocalInferError(f"{printable(host)}: Python has no Unix sockets on this system")
    path = Path(host)
    with socket.socket(socket.AF_UNIX) as listener:
        if is_stale_socket(path):
            path.unlink()
        previous = os.umask(0o177)
        try:
            listener.bind(host)
        finally:
            os.umask(previous)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def is_stale_socket(path: Path) -> bool:
    """Return whether this is a Unix socket on which no process listens."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == errno.ECONNREFUSED


def require_certificate(settings: Settings) -> None:
    """Raise LocalInferError if the files of certificate and key cannot be used."""
    if settings.ssl_cert_file:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                settings.ssl_cert_file, settings.ssl_key_file)  # fmt: skip
        except (OSError, ssl.SSLError) as error:
            problem = "not a certificate and its key" if isinstance(error, ssl.SSLError) else error.strerror
            raise LocalInferError(f"{printable(settings.ssl_cert_file)}: {problem}") from None


def serve(
    app: ASGIApp, listeners: list[socket.socket], settings: Settings, startup: Startup, ready: Callable[[], None]
) -> None:
    """Serve the application until SIGINT or SIGTERM, then let running responses finish for ANSWER_SECONDS.

    Calls `ready` when the model is loaded, from another thread. Raises what loading has raised.
    """
    config = uvicorn.Config(
        app, http=Connection, log_level="error", access_log=False, lifespan="on", ws="none", server_header=False,
        timeout_graceful_shutdown=ANSWER_SECONDS, timeout_keep_alive=KEEP_ALIVE, limit_concurrency=MAX_CONNECTIONS,
        ssl_certfile=settings.ssl_cert_file or None, ssl_keyfile=settings.ssl_key_file or None,
    )  # fmt: skip
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every client that disconnects
    server = Server(config)

    def stop() -> None:
        server.should_exit = True

    startup.begin(ready, stop)
    server.run(sockets=listeners)
    startup.require_success()
