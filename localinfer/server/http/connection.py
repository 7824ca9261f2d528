"""A uvicorn HTTP protocol with limits for the request headers and for clients that do not read the response.

`request_body` limits the body.
"""

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TIMEOUT_SECONDS = 30.0  # for the request headers to arrive, and for a client to continue reading
MAX_HEADER_BYTES = 64 << 10


class CasedHeaderName(bytes):
    """A header name that is sent as it is written. uvicorn sends all others in lower case, which HTTP allows, but some
    clients look for the name in its usual case.
    """

    def lower(self) -> bytes:
        return self


class Connection(HttpToolsProtocol):
    """Closes a connection that is idle, sends headers too slowly or too many, or does not read the response."""

    _header_timer: TimerHandle | None = None  # runs while headers are expected
    _n_header_bytes = 0  # bytes received since the timer started
    _write_timer: TimerHandle | None = None  # runs while the write buffer is full

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._n_header_bytes += len(data)
        if self._header_timer is not None and self._n_header_bytes > MAX_HEADER_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_header_timer()

    def on_headers_complete(self) -> None:
        self._cancel_header_timer()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(TIMEOUT_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_write_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)

    def _start_header_timer(self) -> None:
        if self._header_timer is None:
            self._n_header_bytes = 0
            self._header_timer = self.loop.call_later(TIMEOUT_SECONDS, self.transport.close)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
