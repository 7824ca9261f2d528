"""The endpoints of llama.cpp's server that OpenAI's API lacks."""

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server import streaming
from localinfer.server.api_errors import APIError, field_error
from localinfer.server.dispatcher import Dispatcher, TextPrompt
from localinfer.server.openai.chat import parse_chat_prompt
from localinfer.server.openai.completions import parse_prompts
from localinfer.server.openai.usage import timings
from localinfer.server.request_fields import constraint_options, get, length_options, read_json_object, sampling_options
from localinfer.server.slots import Slot
from localinfer.server.streaming import JSONResponse
from localinfer.version import VERSION

MAX_TOKENIZE = 1 << 20  # characters of a text, or token ids


async def health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def props(request: Request) -> Response:
    """`/props`: properties of the server and of the requested model, or else of the default model."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    served, model = await dispatcher.find_model(request.query_params.get("model"))
    template = model.file.get("tokenizer.chat_template", str, "")
    return JSONResponse({
        "default_generation_settings": {
            "n_ctx": model.n_ctx, "params": request.app.state.default_sampling_options(model)
        },
        "total_slots": len(dispatcher.slots.all),
        "model_alias": served.name,
        "model_path": str(model.file.path),
        "chat_template": template,
        "build_info": f"localinfer {VERSION}",
    })  # fmt: skip


async def slots(request: Request) -> Response:
    """`/slots`: the state of each slot."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    return JSONResponse(
        [describe_slot(slot) | {"waiting": dispatcher.slots.n_waiting} for slot in dispatcher.slots.all]
    )


def describe_slot(slot: Slot) -> dict[str, Any]:
    """Return whether the slot is busy, and how many tokens of the context its sequence uses."""
    state = {"id": slot.number, "is_processing": slot.is_busy}
    return state | ({"n_ctx": slot.model.n_ctx, "n_past": slot.model.engine.n_past} if slot.model else {})


async def tokenize(request: Request) -> Response:
    """`/tokenize`: text to token ids, with `with_pieces` also the text of each token."""
    fields = await read_json_object(request)
    content = get(fields, "content", str, "")
    require_size("content", content)
    add_special, parse_special = get(fields, "add_special", bool, False), get(fields, "parse_special", bool, True)
    with_pieces = get(fields, "with_pieces", bool, False)
    dispatcher: Dispatcher = request.app.state.dispatcher
    _, model = await dispatcher.find_model(get(fields, "model", str, ""))

    def respond() -> Response:
        ids = model.tokenize(content, add_special=add_special, parse_special=parse_special)
        if not with_pieces:
            return JSONResponse({"tokens": ids})
        pieces = (decode_piece(model.tokenizer.token_bytes(id, special=True)) for id in ids)
        return JSONResponse({"tokens": [{"id": id, "piece": piece} for id, piece in zip(ids, pieces, strict=True)]})

    return await dispatcher.run_in_background(respond)


def require_size(field: str, value: str | list[Any]) -> None:
    """Raise APIError (413) for a text or a list that would take more than about a second, and much memory."""
    if len(value) > MAX_TOKENIZE:
        raise APIError(413, f"{field}: {len(value):,} are too many, at most {MAX_TOKENIZE:,}", param=field)


def decode_piece(token_bytes: bytes) -> str | list[int]:
    """Return the token's text, or a list of its bytes if they are not valid UTF-8 on their own."""
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return list(token_bytes)


async def detokenize(request: Request) -> Response:
    """`/detokenize`: token ids to text."""
    fields = await read_json_object(request)
    tokens = get(fields, "tokens", list, [])
    require_size("tokens", tokens)
    dispatcher: Dispatcher = request.app.state.dispatcher
    _, model = await dispatcher.find_model(get(fields, "model", str, ""))
    return await dispatcher.run_in_background(
        lambda: JSONResponse({"content": model.detokenize(tokens, special=True)}))  # fmt: skip


async def apply_template(request: Request) -> Response:
    """`/apply-template`: messages to a prompt, rendered with the chat template."""
    fields = await read_json_object(request)
    chat = parse_chat_prompt(fields)
    async with request.app.state.dispatcher.lease(get(fields, "model", str, "") or None) as lease:
        prompt = await lease.slot.call(lambda: chat.render(lease.model, {}))
    return JSONResponse({"prompt": prompt.text})


# --- /completion: llama.cpp's own completion endpoint ---


async def completion(request: Request) -> Response:
    """`/completion`: continue a text, streaming or not."""
    fields = await read_json_object(request)
    prompts = parse_prompts(fields)
    if len(prompts) > 1:
        raise field_error("prompt", "must be one string or one list of token ids")
    options = sampling_options(fields) | length_options(fields, "n_predict", "max_tokens") | constraint_options(fields)
    model_name = get(fields, "model", str, "") or None
    dispatcher: Dispatcher = request.app.state.dispatcher
    events = completion_events(dispatcher, model_name, prompts[0], options)
    if get(fields, "stream", bool, False):
        return await streaming.stream_response(events, streaming.EVENTS)
    *pieces, final = [event async for event in events]
    content = "".join(piece["content"] for piece in pieces)
    return JSONResponse(final | {"content": content, "tokens": [id for piece in pieces for id in piece["tokens"]]})


async def completion_events(
    dispatcher: Dispatcher, model_name: str | None, prompt: TextPrompt, options: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield an event for each piece, then one with the statistics."""
    async with dispatcher.lease(model_name) as lease, lease.generate(prompt, options) as generation:
        async for piece in generation.pieces:
            yield {"index": 0, "content": piece.text, "tokens": [piece.id], "stop": False, "id_slot": lease.slot.number}
    stats = generation.stats
    yield {
        "index": 0,
        "content": "",
        "tokens": [],
        "id_slot": lease.slot.number,
        "stop": True,
        "model": lease.name,
        "tokens_predicted": stats.generated_tokens,
        "tokens_evaluated": stats.prompt_tokens,
        "tokens_cached": stats.prompt_tokens + stats.generated_tokens,
        "stop_type": "limit" if generation.finish_reason == "length" else "eos",
        "truncated": False,
        "timings": timings(stats),
    }
