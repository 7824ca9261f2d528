"""Authentication, and protection against requests from foreign web pages. It runs before the request body is read.

Any web page can make the user's browser send requests to this machine. The `Origin` header identifies such requests.
The `Host` header exposes DNS rebinding, where an attacker's host name resolves to this machine; a numeric address
cannot be rebound.
"""

import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from localinfer.server.error_responses import error_response
from localinfer.server.http.api_errors import APIError
from localinfer.server.http.connection import CasedHeaderName
from localinfer.server.http.middleware import Middleware

PUBLIC_PATHS = {"/health", "/v1/health"}  # no API key needed
APP_SCHEMES = ("app", "file", "tauri", "vscode-webview", "vscode-file")  # of installed programs, never of web pages
WEB_UI_PREFIX = "/page/"
METHODS = "GET, POST, DELETE, OPTIONS"  # beside HEAD, which needs no permission


class AuthMiddleware(Middleware):
    """Rejects requests with a foreign Host or Origin or without a valid API key, and handles CORS preflights."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        error = self.check(scope["path"], scope["method"], headers)
        if error and error.code == "origin" and scope["method"] == "OPTIONS":
            await Response()(scope, receive, send)  # without the headers, the browser sends no further request
        elif error:
            await error_response(scope, error)(scope, receive, send)
        elif origin is None:
            await self.app(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await Response()(scope, receive, with_headers(send, cors_headers(origin)))
        else:
            await self.app(scope, receive, with_headers(send, cors_headers(origin)))

    def check(self, path: str, method: str, headers: Headers) -> APIError | None:
        """Return why the request is rejected, or None if it is allowed."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_allowed_host(hostname(f"//{host}"), (*self.settings.allowed_hosts, *self.settings.hosts)):
            return APIError(403, "Host: this host name is not allowed; --allow-host adds one", code="host")
        if origin is not None and not self.is_allowed_origin(origin, host):
            return APIError(
                403, "Origin: requests from this origin are not allowed; --allow-origin adds one", code="origin"
            )
        is_public = method == "OPTIONS" or path in PUBLIC_PATHS or path == "/" or path.startswith(WEB_UI_PREFIX)
        if self.settings.api_keys and not is_public and not self.is_valid_key(api_key(headers)):
            return APIError(
                401, "missing or invalid API key; send the header Authorization: Bearer KEY", code="invalid_api_key"
            )
        return None

    def is_allowed_origin(self, origin: str, host: str) -> bool:
        """Return whether pages of this origin may send requests: those of this server, of loopback hosts, of desktop
        apps and editors, and `allowed_origins`.
        """
        allowed = self.settings.allowed_origins
        if "*" in allowed or origin in allowed or origin in (f"http://{host}", f"https://{host}"):
            return True
        scheme = origin.partition("://")[0]
        return scheme in APP_SCHEMES or (is_loopback(hostname(origin)) and scheme in ("http", "https"))

    def is_valid_key(self, key: str) -> bool:
        """Compare the key with all valid keys in constant time. Starlette decodes headers as Latin-1."""
        encoded = key.encode("latin-1")
        return sum(hmac.compare_digest(encoded, valid.encode()) for valid in self.settings.api_keys) > 0


def api_key(headers: Headers) -> str:
    """Return the key of `Authorization: Bearer` or `X-Api-Key`; empty if there is none."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")


def hostname(address: str) -> str:
    """Return the host of `//HOST:PORT` or of an origin; empty if it is malformed."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def is_allowed_host(name: str, allowed: Iterable[str]) -> bool:
    return is_loopback(name) or is_ip_address(name) or name in {each.lower() for each in allowed}


def is_loopback(name: str) -> bool:
    """Return whether this is a loopback address or a name that always resolves to one."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return is_ip_address(name) and ipaddress.ip_address(name).is_loopback


def is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def cors_headers(origin: str) -> Iterable[tuple[str, str]]:
    """Yield the headers that allow a browser page of this origin to read the response."""
    yield "Access-Control-Allow-Origin", origin
    yield "Vary", "Origin"
    yield "Access-Control-Allow-Methods", METHODS
    yield "Access-Control-Allow-Headers", "*, Authorization"
    yield "Access-Control-Allow-Credentials", "true"


def with_headers(send: Send, added: Iterable[tuple[str, str]]) -> Send:
    """Return a `send` that adds headers to the response, with their names as they are."""
    encoded = [(CasedHeaderName(name.encode()), value.encode()) for name, value in added]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *encoded]
        await send(message)

    return send_with_headers
