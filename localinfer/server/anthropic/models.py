"""`/v1/models` for clients of Anthropic's API, which send the header `anthropic-version`."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.models.model_cache import ServedModel, model_file


async def list_models(request: Request) -> Response:
    """`/v1/models`: all models, on one page."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    list_all = dispatcher.model_cache.served_models  # it may read directories
    data = await asyncio.to_thread(lambda: [model_object(each, dispatcher) for each in list_all()])
    ids = [each["id"] for each in data] or [None]
    return JSONResponse({"data": data, "has_more": False, "first_id": ids[0], "last_id": ids[-1]})


async def retrieve_model(request: Request) -> Response:
    """`/v1/models/{name}`"""
    dispatcher: Dispatcher = request.app.state.dispatcher
    name: str = request.path_params["name"]
    find = dispatcher.model_cache.resolve
    return JSONResponse(await asyncio.to_thread(lambda: model_object(find(name), dispatcher)))


def model_object(served: ServedModel, dispatcher: Dispatcher) -> dict[str, Any]:
    """Return the model, with the length of its context if it is loaded."""
    file = model_file(served)
    created = datetime.fromtimestamp(file.stat().st_mtime if file else 0, UTC)
    model = dispatcher.model_cache.loaded.get(served.name)
    return {
        "type": "model",
        "id": served.name,
        "display_name": served.name,
        "created_at": created.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "lifecycle": "active",
        **({"max_input_tokens": model.n_ctx, "max_tokens": model.n_ctx} if model else {}),
    }
