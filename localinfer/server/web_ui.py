"""The web UI at `/`: static files that send requests to this server only."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parent / "browser"
SECURITY_HEADERS = {  # the browser blocks other hosts, inline scripts and inline styles
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


async def index(_: Request) -> Response:
    """`/`: the page."""
    return FileResponse(FOLDER / "index.html", headers=SECURITY_HEADERS)


ROUTES = [Route("/", index, methods=["GET"]), Mount("/page", StaticFiles(directory=FOLDER))]
