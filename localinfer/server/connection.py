"""A connection as uvicorn serves it, with bounds for what comes before a request's body, and for how long the client
may leave an answer unread; `intake` bounds the body."""

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

PATIENCE = 30.0  # seconds until a request's headers are here, and until a client reads on
MOST = 64 << 10  # bytes of headers


class Connection(HttpToolsProtocol):
    """Closed when nothing comes, when headers drip, when they have no end, and when nobody reads the answer."""

    _patience: TimerHandle | None = None  # while headers are awaited
    _waited_for = 0  # bytes that came meanwhile
    _unread: TimerHandle | None = None  # while there is so much for the client to read that nothing more is sent

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._waited_for += len(data)
        if self._patience is not None and self._waited_for > MOST:
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        self._end_of_patience()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(PATIENCE, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_of_unread()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_of_patience()
        self._end_of_unread()
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        if self._patience is None:
            self._waited_for = 0
            self._patience = self.loop.call_later(PATIENCE, self.transport.close)

    def _end_of_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _end_of_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
