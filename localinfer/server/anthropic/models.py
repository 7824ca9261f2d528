"""`/v1/models` for clients of Anthropic's API, which send the header `anthropic-version`."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.model_cache import ServedModel, model_file
from localinfer.server.streaming import JSONResponse


async def list_models(request: Request) -> Response:
    """`/v1/models`: all models, on one page."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    data = [model_object(each, dispatcher) for each in dispatcher.model_cache.served_models()]
    ids = [each["id"] for each in data] or [None]
    return JSONResponse({"data": data, "has_more": False, "first_id": ids[0], "last_id": ids[-1]})


async def retrieve_model(request: Request) -> Response:
    """`/v1/models/{name}`"""
    dispatcher: Dispatcher = request.app.state.dispatcher
    return JSONResponse(model_object(dispatcher.model_cache.resolve(request.path_params["name"]), dispatcher))


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
