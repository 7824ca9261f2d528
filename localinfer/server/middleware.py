"""What stands around the application, and lets through what is no HTTP request."""

from abc import ABC, abstractmethod

from starlette.types import ASGIApp, Receive, Scope, Send

from localinfer.server.settings import Settings


class Middleware(ABC):
    """Answers a request itself, or hands it on to `app`."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.handle if scope["type"] == "http" else self.app)(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do so with an HTTP request."""
