"""`/api/tags`, `/api/show`, `/api/ps` and `/api/version`: information about models."""

import asyncio
from collections.abc import Sized
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from localinfer.escaping import printable
from localinfer.gguf.reader import open_gguf
from localinfer.hub.model_description import describe
from localinfer.hub.resolve import default_options
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import APIError
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.models.model_cache import ModelCache, ServedModel, model_file
from localinfer.server.models.model_info import ModelInfo, read_model_info
from localinfer.server.requests.request_fields import get, read_json_object

OLLAMA_VERSION = "0.12.6"  # the version of Ollama whose API this server implements; clients check it
FOREVER = datetime(2200, 1, 1, tzinfo=UTC)  # expiry time of a model without keep_alive
MAX_LIST_LENGTH = 64  # longer metadata arrays are left out unless the request is verbose
CAPABILITIES = {"image": "vision", "audio": "audio"}  # what a model reads -> as Ollama calls it


async def version(_: Request) -> Response:
    """`/api/version`"""
    return JSONResponse({"version": OLLAMA_VERSION})


async def tags(request: Request) -> Response:
    """`/api/tags`: all models."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    served = await asyncio.to_thread(dispatcher.model_cache.served_models)
    return JSONResponse({"models": await asyncio.to_thread(describe_models, served)})


async def running(request: Request) -> Response:
    """`/api/ps`: the loaded models."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    loaded = {name: model.n_ctx for name, model in dispatcher.model_cache.loaded.items()}
    listed = await asyncio.to_thread(dispatcher.model_cache.served_models)
    served = [each for each in listed if each.name in loaded]
    expiry_times = {name: dispatcher.unload_times.get(name, FOREVER).isoformat() for name in loaded}
    models = await asyncio.to_thread(describe_models, served)
    for each in models:
        name = each["name"]
        each |= {"expires_at": expiry_times[name], "size_vram": 0, "context_length": loaded[name]}
    return JSONResponse({"models": models})


async def show(request: Request) -> Response:
    """`/api/show`: the metadata of one model."""
    fields = await read_json_object(request)
    dispatcher: Dispatcher = request.app.state.dispatcher
    served = await dispatcher.resolve(get(fields, "model", str, "") or get(fields, "name", str, "") or None)
    verbose = get(fields, "verbose", bool, False)
    return JSONResponse(await asyncio.to_thread(model_details, served, dispatcher.model_cache, verbose))


def model_details(served: ServedModel, model_cache: ModelCache, verbose: bool) -> dict[str, Any]:
    file = model_file(served)
    info = read_model_info(file) if file else None
    if file is None or info is None:
        message = f"model: the file of {printable(served.name, 100)} cannot be read"
        raise APIError(404, message, "model", "model_not_found")
    f = open_gguf(file)
    metadata = {key: value for key, value in f.metadata.items() if verbose or is_short(value)}
    template = str(default_options(served.source).get("chat_template", info.template))
    description = describe(served.source, f, template)
    kinds = model_cache.media_kinds(served)
    return {
        "modelfile": description.modelfile(),
        "parameters": "\n".join(description.parameter_lines()),
        "template": template,
        "system": description.system,
        "license": description.licence,
        "details": format_details(info),
        "model_info": {key: to_json_value(value) for key, value in metadata.items()}
        | {"general.parameter_count": info.n_parameters},
        "capabilities": [*capabilities(info), *(name for kind, name in CAPABILITIES.items() if kind in kinds)],
        "modified_at": info.modified.isoformat(),
    }


def capabilities(info: ModelInfo) -> list[str]:
    """Return the capabilities that the chat template implies."""
    tools = ["tools"] if "tools" in info.template else []
    thinking = ["thinking"] if "<think>" in info.template or "enable_thinking" in info.template else []
    return ["completion", *tools, *thinking]


def is_short(value: object) -> bool:
    """Return whether a metadata value is short enough for a response that is not verbose; vocabularies are not."""
    return not isinstance(value, Sized) or isinstance(value, str | bytes) or len(value) <= MAX_LIST_LENGTH


def to_json_value(value: Any) -> Any:
    """Convert a metadata value to a value that JSON can represent."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, str | int):
        return value
    return [to_json_value(each) for each in (value.tolist() if isinstance(value, np.ndarray) else value)]


def describe_models(served: list[ServedModel]) -> list[dict[str, Any]]:
    """Describe the models whose files are readable."""
    files = [(each, file) for each in served if (file := model_file(each))]
    return [describe_model(each, info) for each, file in files if (info := read_model_info(file))]


def describe_model(served: ServedModel, info: ModelInfo) -> dict[str, Any]:
    return {
        "name": served.name,
        "model": served.name,
        "modified_at": info.modified.isoformat(),
        "size": info.size,
        "digest": info.digest,
        "details": format_details(info),
    }


def format_details(info: ModelInfo) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": info.parameter_size,
        "quantization_level": info.file_type,
    }
