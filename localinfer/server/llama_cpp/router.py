"""The endpoints with which llama.cpp's server manages several models: `/models`, `/models/load`, `/models/unload` and
`/models/sse`.
"""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http import streaming
from localinfer.server.http.api_errors import APIError, to_api_error
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.llama_cpp.downloads import Downloads
from localinfer.server.models.catalog import HUB, ServedModel
from localinfer.server.models.model_reload import reload_models, unload_unlisted
from localinfer.server.models.model_states import exit_code
from localinfer.server.ollama.progress import model_name
from localinfer.server.openai.models import model_object
from localinfer.server.requests.request_fields import read_json_object

RUNNING = ("loading", "loaded", "sleeping")
SUCCESS = {"success": True}


async def list_models(request: Request) -> Response:
    """`GET /models` and `/v1/models`: all models and their status. With `reload=1`, directories and presets are read
    anew, and models that are gone or have changed are unloaded.

    `/models` calls models of the hub as llama.cpp does, without a prefix.
    """
    dispatcher: Dispatcher = request.app.state.dispatcher
    if request.query_params.get("reload"):
        await reload_models(dispatcher.models)
    served = await asyncio.to_thread(dispatcher.model_cache.served_models)
    unload_unlisted(dispatcher.models)
    objects = await asyncio.to_thread(lambda: [model_object(each, dispatcher) for each in served])
    data = [each | describe(model, dispatcher) for each, model in zip(objects, served, strict=True)]
    data += [download.describe() for download in downloads(request).running()]
    if request.url.path == "/models":
        data = [as_in_llama_cpp(each) for each in data]
    return JSONResponse({"object": "list", "data": data})


def describe(served: ServedModel, dispatcher: Dispatcher) -> dict[str, Any]:
    """Return what llama.cpp's server says about a model besides the fields of OpenAI's API."""
    state = dispatcher.models.states.of(served)
    status: dict[str, Any] = {
        "value": dispatcher.models.status(served),
        "args": ["localinfer", "serve", *served.arguments],
    }
    if state.error and status["value"] == "unloaded":
        status |= {"failed": True, "exit_code": exit_code(state.error), "error": to_api_error(state.error).message}
    return {
        "status": status,
        "source": served.origin,
        "can_remove": served.origin == "cache",
    }


def as_in_llama_cpp(model: dict[str, Any]) -> dict[str, Any]:
    """Return a model of the hub with the name that llama.cpp gives it; its own name becomes an alias."""
    name = model["id"]
    if not name.startswith(HUB):
        return model
    return model | {"id": name.removeprefix(HUB), "aliases": [name, *model["aliases"]]}


async def load_model(request: Request) -> Response:
    """`POST /models/load`: begin to load a model. `/models` and `/models/sse` tell when it is loaded."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    served = find(dispatcher, model_name(await read_json_object(request), "model"), 404)
    if dispatcher.models.status(served) in ("loading", "loaded"):
        raise APIError(400, "model is already running", "model")
    dispatcher.load(served)
    return JSONResponse(SUCCESS)


async def unload_model(request: Request) -> Response:
    """`POST /models/unload`: unload a model after its running answers, or cancel its load or its download."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    name = model_name(await read_json_object(request), "model")
    if downloads(request).cancel(name):
        return JSONResponse(SUCCESS)
    served = find(dispatcher, name, 400)
    if dispatcher.models.status(served) not in RUNNING:
        raise APIError(400, "model is not running", "model")
    dispatcher.request_unload(served)
    return JSONResponse(SUCCESS)


async def model_events(request: Request) -> Response:
    """`GET /models/sse`: a stream of what happens to models."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    events = dispatcher.models.events.listen()
    return streaming.EventStreamResponse(
        asyncio.ensure_future(anext(events)), events, streaming.EVENTS, streaming.PING_INTERVAL
    )


def find(dispatcher: Dispatcher, name: str, status: int) -> ServedModel:
    """Return the model with this name. Raises APIError with this status."""
    if served := dispatcher.model_cache.find(name):
        return served
    raise APIError(status, "model is not found", "model", "model_not_found")


def downloads(request: Request) -> Downloads:
    """Return the downloads of the application."""
    running: Downloads = request.app.state.downloads
    return running
