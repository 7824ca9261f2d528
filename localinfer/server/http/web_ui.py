"""The web UI at `/`: static files that send requests to this server, and to origins that `--webui-connect` names."""

import os
from collections.abc import Iterable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parents[1] / "browser"
TYPES = {  # of all files; the operating system may know others
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".json": "application/json",
    ".LICENSE": "text/plain; charset=utf-8",
}  # fmt: skip


def security_headers(origins: Iterable[str]) -> dict[str, str]:
    """Return headers that make the browser block inline scripts, inline styles, and other hosts than these origins."""
    policy = {
        "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "img-src": "'self'",
        "worker-src": "'self'", "connect-src": " ".join(("'self'", *origins)), "base-uri": "'none'",
        "form-action": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }


class BrowserFiles(StaticFiles):
    """The files of the page. Those of `libraries/` are stored compressed, and sent so."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        full_path, stat = super().lookup_path(path)
        return (full_path, stat) if stat else super().lookup_path(f"{path}.gz")

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        path = Path(full_path)
        if path.suffix == ".gz":
            response.headers["content-encoding"] = "gzip"
        response.headers.update(security_headers(scope["app"].state.dispatcher.settings.web_ui_origins))
        if "content-type" in response.headers:  # not in the response "not modified"
            suffix = Path(path.name.removesuffix(".gz")).suffix
            response.headers["content-type"] = TYPES[suffix]
        return response


async def index(request: Request) -> Response:
    """`/`: the page."""
    headers = security_headers(request.app.state.dispatcher.settings.web_ui_origins)
    return FileResponse(FOLDER / "index.html", headers=headers)


ROUTES = [Route("/", index, methods=["GET"]), Mount("/page", BrowserFiles(directory=FOLDER))]
