"""`/health` and `/props`: the state of the server, and the properties of a model."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.chat_template.placeholders import MEDIA_MARKER
from localinfer.options import FLAGS
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import APIError
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.llama_cpp.generation_settings import generation_settings
from localinfer.server.models.model_cache import ServedModel
from localinfer.server.requests.request_fields import read_json_object
from localinfer.server.settings import SYSTEM_FINGERPRINT

if TYPE_CHECKING:
    from localinfer.model import Model

MODALITIES = {"vision": "image", "audio": "audio", "video": "video"}  # as llama.cpp calls what a model reads


async def health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def props(request: Request) -> Response:
    """`/props`: properties of the server and of the requested model. They do not wake a model that sleeps. A server
    with several models describes itself if the request names none.
    """
    dispatcher: Dispatcher = request.app.state.dispatcher
    name = request.query_params.get("model")
    if not name and not dispatcher.model_cache.catalog.is_single:
        return JSONResponse(router_properties(dispatcher))
    served = await dispatcher.resolve(name)
    known = dispatcher.properties.get(served.name)
    if known and dispatcher.models.status(served) == "sleeping":
        return JSONResponse(known | {"is_sleeping": True})
    served, model = await dispatcher.find_model(name)
    return JSONResponse(describe(served, model, dispatcher))


def router_properties(dispatcher: Dispatcher) -> dict[str, Any]:
    """Return the properties of a server with several models, as llama.cpp's server calls them."""
    return {
        "role": "router",
        "max_instances": dispatcher.settings.models_max,
        "models_autoload": dispatcher.settings.models_autoload,
        "model_alias": "localinfer",
        "model_path": "none",
        "default_generation_settings": {"n_ctx": 0, "params": {}},
        "total_slots": len(dispatcher.slots.all),
        "endpoint_slots": dispatcher.settings.has_slots,
        "endpoint_metrics": dispatcher.settings.has_metrics,
        "endpoint_props": True,
        "webui": dispatcher.settings.has_web_ui,
        "build_info": SYSTEM_FINGERPRINT,
    }


def describe(served: ServedModel, model: "Model", dispatcher: Dispatcher) -> dict[str, Any]:
    """Return the properties of a loaded model, and keep them for the time when it sleeps."""
    params = default_sampling_options(model) | generation_settings(model.options, model)
    properties = {
        "default_generation_settings": {"n_ctx": model.n_ctx, "params": params},
        "total_slots": len(dispatcher.slots.all),
        "model_alias": served.name,
        "model_path": str(model.file.path),
        "modalities": {name: kind in model.media_kinds for name, kind in MODALITIES.items()},
        "media_marker": MEDIA_MARKER,
        "endpoint_slots": dispatcher.settings.has_slots,
        "endpoint_metrics": dispatcher.settings.has_metrics,
        "endpoint_props": True,
        "webui": dispatcher.settings.has_web_ui,
        "chat_template": template_text(model),
        "chat_template_caps": template_capabilities(template_text(model)),
        "bos_token": special_token(model, model.tokenizer.bos),
        "eos_token": special_token(model, model.tokenizer.eos),
        "build_info": SYSTEM_FINGERPRINT,
        "is_sleeping": False,
    }
    dispatcher.properties[served.name] = properties
    return properties


def default_sampling_options(model: "Model") -> dict[str, Any]:
    """Return the sampling options that apply where a request sets none."""
    return {name: value for name, value in asdict(model.options).items() if FLAGS[name].section == "sampling"}


def template_text(model: "Model") -> str:
    """Return the chat template that the options select, or else that of the file."""
    return model.options.chat_template or model.file.get("tokenizer.chat_template", str, "")


def template_capabilities(template: str) -> dict[str, bool]:
    """Return what a chat template can render, as far as its variables show it."""
    return {
        "supports_tools": "tools" in template,
        "supports_tool_calls": "tool_calls" in template,
        "supports_parallel_tool_calls": "tool_calls" in template,
        "supports_system_role": "system" in template,
        "supports_preserve_reasoning": "reasoning_content" in template,
        "supports_string_content": True,
    }


def special_token(model: "Model", id: int | None) -> str:
    return "" if id is None else model.tokenizer.token_text(id)


async def change_props(request: Request) -> Response:
    """`POST /props`: llama.cpp's server has no property that can be changed, either."""
    if not request.app.state.dispatcher.settings.has_props:
        raise APIError(501, "POST /props: the server was not started with --props")
    await read_json_object(request)
    return JSONResponse({"success": True})
