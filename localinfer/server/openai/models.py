"""`/v1/models`: the models that this server serves."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.models.model_cache import ServedModel, model_file


async def retrieve_model(request: Request) -> Response:
    """`/v1/models/{name}`"""
    dispatcher: Dispatcher = request.app.state.dispatcher
    name: str = request.path_params["name"]
    find = dispatcher.model_cache.resolve  # it may read directories
    return JSONResponse(await asyncio.to_thread(lambda: model_object(find(name), dispatcher)))


def model_object(served: ServedModel, dispatcher: Dispatcher) -> dict[str, Any]:
    """Return OpenAI's model object, with llama.cpp's `meta` if the model is loaded, and what it reads."""
    file = model_file(served)
    created = int(file.stat().st_mtime) if file else 0
    result: dict[str, Any] = {"id": served.name, "object": "model", "created": created, "owned_by": "localinfer"}
    result |= {"aliases": list(served.aliases), "tags": list(served.tags or dispatcher.settings.tags)}
    model = dispatcher.model_cache.loaded.get(served.name)
    kinds = dispatcher.model_cache.media_kinds(served)
    inputs = [each for each in ("image", "audio", "video") if each in kinds]
    result["architecture"] = {"input_modalities": ["text", *inputs], "output_modalities": ["text"]}
    result["capabilities"] = ["completion", *(["multimodal"] if inputs else [])]
    if model:
        result["meta"] = {"n_ctx": model.n_ctx, "n_vocab": model.n_vocab}
    return result
