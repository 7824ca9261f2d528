"""Who may ask: checked before anything of a request is read.

A page of any web site can make a browser here send requests to this machine. `Origin` tells where such a request comes
from, and `Host` gives away a name that was made to point here (DNS rebinding): an address that is written in numbers
cannot be.
"""

import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from localinfer.server.middleware import Middleware
from localinfer.server.problems import Problem
from localinfer.server.streams import Json

OPEN_TO_ALL = {"/health", "/v1/health"}  # without a key
PAGE = "/page/"
METHODS = "GET, POST, DELETE, HEAD, OPTIONS"


class Gate(Middleware):
    """Refuses what comes from elsewhere, or without the key; tells browsers which pages may ask."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if problem := self.problem(scope["path"], scope["method"], headers):
            await Json({"error": problem.error}, problem.status)(scope, receive, send)
        elif origin is None:
            await self.app(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=dict(allowing(origin)))(scope, receive, send)
        else:
            await self.app(scope, receive, with_headers(send, allowing(origin)))

    def problem(self, path: str, method: str, headers: Headers) -> Problem | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_of_this_machine(hostname(f"//{host}"), (*self.settings.allowed_hosts, self.settings.host)):
            return Problem(403, "this server does not answer under that name; --allow-host adds one", code="host")
        if origin is not None and not self.allows(origin, host):
            return Problem(403, "pages from there may not ask; --allow-origin adds one", code="origin")
        is_free = method == "OPTIONS" or path in OPEN_TO_ALL or path == "/" or path.startswith(PAGE)
        if self.settings.api_keys and not is_free and not self.knows(key_of(headers)):
            return Problem(401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key")
        return None

    def allows(self, origin: str, host: str) -> bool:
        """Pages of our own, of other servers on this machine, and those that the user has named."""
        allowed = self.settings.allowed_origins
        if "*" in allowed or origin in allowed or origin == f"http://{host}":
            return True
        return is_loopback(hostname(origin)) and urlsplit(origin).scheme in ("http", "https")

    def knows(self, key: str) -> bool:
        """In a time that does not depend on where they differ. Headers are bytes, which starlette reads as Latin-1."""
        given = key.encode("latin-1")
        return sum(hmac.compare_digest(given, known.encode()) for known in self.settings.api_keys) > 0


def key_of(headers: Headers) -> str:
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")


def hostname(address: str) -> str:
    """Of //HOST:PORT or an origin; empty where it makes no sense."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def is_of_this_machine(name: str, known: Iterable[str]) -> bool:
    return is_loopback(name) or is_address(name) or name in {each.lower() for each in known}


def is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return is_address(name) and ipaddress.ip_address(name).is_loopback


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def allowing(origin: str) -> Iterable[tuple[str, str]]:
    yield "Access-Control-Allow-Origin", origin
    yield "Vary", "Origin"
    yield "Access-Control-Allow-Methods", METHODS
    yield "Access-Control-Allow-Headers", "*, Authorization"


def with_headers(send: Send, added: Iterable[tuple[str, str]]) -> Send:
    encoded = [(name.lower().encode(), value.encode()) for name, value in added]

    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *encoded]
        await send(message)

    return send_more
