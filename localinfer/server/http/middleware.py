"""The base class of ASGI middleware that handles HTTP requests only."""

from abc import ABC, abstractmethod

from starlette.types import ASGIApp, Receive, Scope, Send

from localinfer.server.settings import Settings


class Middleware(ABC):
    """Passes everything but HTTP requests to `app` unchanged."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.handle if scope["type"] == "http" else self.app)(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an HTTP request: respond to it, or pass it to `app`."""
