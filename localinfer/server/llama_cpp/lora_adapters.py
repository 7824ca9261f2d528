"""`/lora-adapters`: the LoRA adapters of a model, and their scales in requests that set no others."""

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.requests.request_fields import adapter_scales, parse_json

if TYPE_CHECKING:
    from localinfer.model import Model


async def list_adapters(request: Request) -> Response:
    """`GET /lora-adapters`: the number, the file and the scale of each adapter of the model that the query names."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    _, model = await dispatcher.find_model(request.query_params.get("model"))
    return JSONResponse(describe(model))


def describe(model: "Model") -> list[dict[str, Any]]:
    """Return the adapters of a model."""
    pairs = zip(model.lora_adapters, model.lora_scales, strict=True)
    return [{"id": number, "path": str(path), "scale": scale} for number, (path, scale) in enumerate(pairs)]


async def set_scales(request: Request) -> Response:
    """`POST /lora-adapters`: set the scales. Adapters that the list does not name have the scale 0."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    given = adapter_scales("body", parse_json(await request.body() or b"[]"))
    _, model = await dispatcher.find_model(request.query_params.get("model"))
    model.set_lora_scales(given)
    return JSONResponse({"success": True})
