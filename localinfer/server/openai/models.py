"""`/v1/models`: the models that this server serves."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.model_cache import ServedModel, model_file
from localinfer.server.streaming import JSONResponse


async def retrieve_model(request: Request) -> Response:
    """`/v1/models/{name}`"""
    dispatcher: Dispatcher = request.app.state.dispatcher
    return JSONResponse(model_object(dispatcher.model_cache.resolve(request.path_params["name"]), dispatcher))


def model_object(served: ServedModel, dispatcher: Dispatcher) -> dict[str, Any]:
    """Return OpenAI's model object, with llama.cpp's `meta` if the model is loaded."""
    file = model_file(served)
    created = int(file.stat().st_mtime) if file else 0
    result: dict[str, Any] = {"id": served.name, "object": "model", "created": created, "owned_by": "localinfer"}
    result |= {"aliases": list(served.aliases), "tags": list(served.tags or dispatcher.settings.tags)}
    if model := dispatcher.model_cache.loaded.get(served.name):
        result["meta"] = {"n_ctx": model.n_ctx, "n_vocab": model.n_vocab}
    return result
