"""`/v1/models`: what can be asked."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.desk import Desk
from localinfer.server.shelf import Offered, file_of
from localinfer.server.streams import Json


async def listing(request: Request) -> Response:
    desk: Desk = request.app.state.desk
    return Json({"object": "list", "data": [described(each, desk) for each in desk.shelf.offered()]})


async def one(request: Request) -> Response:
    desk: Desk = request.app.state.desk
    return Json(described(desk.shelf.resolved(request.path_params["name"]), desk))


def described(offered: Offered, desk: Desk) -> dict[str, Any]:
    file = file_of(offered)
    created = int(file.stat().st_mtime) if file else 0
    told: dict[str, Any] = {"id": offered.name, "object": "model", "created": created, "owned_by": "localinfer"}
    if model := desk.shelf.loaded.get(offered.name):
        told["meta"] = {"n_ctx": model.n_ctx, "n_vocab": model.n_vocab}
    return told
