"""The page to talk to, at `/`: plain files that ask nobody but this server."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parent / "browser"
POLICY = {  # what the page may do, told to the browser: no other host, no script or style within the page
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


async def index(_: Request) -> Response:
    return FileResponse(FOLDER / "index.html", headers=POLICY)


ROUTES = [Route("/", index, methods=["GET"]), Mount("/page", StaticFiles(directory=FOLDER))]
