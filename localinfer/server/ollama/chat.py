"""`/api/chat` and `/api/generate`."""

import warnings
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from json import dumps
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.options import Layer
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http import streaming
from localinfer.server.http.api_errors import field_error
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.lease import Lease
from localinfer.server.ollama.keep_alive import parse_keep_alive
from localinfer.server.openai.logprobs import chat_logprob
from localinfer.server.requests.infill_prompt import InfillPrompt
from localinfer.server.requests.mixed_prompts import MixedPrompt
from localinfer.server.requests.prompts import ChatPrompt, Prompt, TextPrompt
from localinfer.server.requests.request_fields import (
    SAMPLING,
    Fields,
    get,
    get_int,
    json_constraint_fields,
    length_options,
    parse_fields,
    read_json_object,
    sampling_options,
)
from localinfer.server.requests.tool_fields import parse_tool_fields

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece, Stats, ToolCall

Chunk = dict[str, Any]
FIELD_BY_KIND = {"text": "content", "reasoning": "thinking"}  # kind of piece -> field of a message
FIELD_OF = json_constraint_fields("format")
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A parsed request. `make_chunk(field, text)` returns a chunk in the format of the endpoint."""

    model_name: str | None
    prompt: Prompt | None  # None: only load or unload the model
    options: Layer
    stream: bool
    keep_alive: float | None  # seconds until the idle model is unloaded, if the request sets it
    top_logprobs: int | None
    make_chunk: Callable[[str, str], Chunk]
    num_ctx: int = 0  # the context that the client wants
    warnings: list[str] = field(default_factory=list)  # for the header of the response


async def chat(request: Request) -> Response:
    """`/api/chat`"""
    fields = await read_json_object(request)
    messages = await parse_fields(parse_messages, fields)
    tools, kwargs = parse_tool_fields(fields), reasoning_kwargs(fields)
    prompt = ChatPrompt(messages, tools, kwargs, field_of=FIELD_OF | tools.field_of) if messages else None
    return await respond(request, parse_request(fields, prompt, message_chunk))


async def generate(request: Request) -> Response:
    """`/api/generate`: answer the prompt as a user message; continue it if `raw` is set; fill the gap before `suffix`.
    """
    fields = await read_json_object(request)
    text, system = get(fields, "prompt", str, ""), get(fields, "system", str, "")
    suffix = get(fields, "suffix", str, "")
    images = parse_images(fields, "images")
    prompt: Prompt | None = None
    if suffix and images:
        raise field_error("images", "cannot be combined with suffix: a prompt with a gap is text only")
    if text and suffix:
        suffix_first = request.app.state.dispatcher.settings.suffix_first
        prompt = InfillPrompt(
            MixedPrompt((text,)), MixedPrompt((suffix,)), suffix_first=suffix_first, field_of=FIELD_OF
        )
    elif text and get(fields, "raw", bool, False):
        prompt = TextPrompt(text, field_of=FIELD_OF, images=images)
    elif text:
        system_messages = [{"role": "system", "content": system}] if system else []
        messages: list[Mapping[str, object]] = [*system_messages]
        messages.append({"role": "user", "content": with_images(text, images, "images")})
        prompt = ChatPrompt(messages, template_kwargs=reasoning_kwargs(fields), field_of=FIELD_OF)
    return await respond(request, parse_request(fields, prompt, response_chunk))


# --- request ---


def parse_request(fields: Fields, prompt: Prompt | None, make_chunk: Callable[[str, str], Chunk]) -> GenerationRequest:
    request_options = get(fields, "options", dict, {})
    options = (
        sampling_options(request_options, SAMPLING)
        | length_options(request_options, "num_predict")
        | constraint_options(fields)
    )
    if isinstance(fields.get("think"), bool):
        options |= {"think": "on" if fields["think"] else "off"}
    wants_logprobs, top = get(fields, "logprobs", bool, False), get(fields, "top_logprobs", int, 0)
    if wants_logprobs:
        options |= {"logprobs": min(max(top, 1), MAX_LOGPROBS)}
    return GenerationRequest(
        model_name=get(fields, "model", str, "") or None,
        prompt=prompt,
        options=options,
        stream=get(fields, "stream", bool, True),
        keep_alive=parse_keep_alive(fields),
        top_logprobs=top if wants_logprobs else None,
        make_chunk=make_chunk,
        num_ctx=get_int(request_options, "num_ctx", 0, 0, 2**31 - 1),
    )


def reasoning_kwargs(fields: Fields) -> Mapping[str, Any]:
    """Return the chat template options for a reasoning effort such as "low"."""
    return {"reasoning_effort": fields["think"]} if isinstance(fields.get("think"), str) else {}


def constraint_options(fields: Fields) -> Layer:
    """Return the structured output options of `format`, which is "json" or a JSON schema."""
    format = fields.get("format")
    if format is None or format == "":
        return {}
    if format == "json":
        return {"json_mode": True}
    if not isinstance(format, dict):
        raise field_error("format", 'must be "json" or a JSON schema')
    return {"json_schema": dumps(format)}


def parse_messages(fields: Fields) -> list[Mapping[str, Any]]:
    return [parse_message(each, f"messages[{n}]") for n, each in enumerate(get(fields, "messages", list, []))]


def parse_message(message: object, where: str) -> Mapping[str, Any]:
    """Convert a message to the format of chat templates. Raises APIError (400) if it is invalid."""
    if not isinstance(message, Mapping):
        raise field_error("messages", "must be a list of objects with role and content")
    images = parse_images(message, f"{where}.images")
    text = message.get("content") or ""
    if images and not isinstance(text, str):
        raise field_error(f"{where}.content", "must be a string in a message with images")
    content = {"content": with_images(text, images, f"{where}.images")} if images else {}
    named = {"name": message["tool_name"]} if "tool_name" in message else {}
    return {key: value for key, value in message.items() if key not in ("images", "tool_name")} | named | content


def parse_images(fields: Fields, where: str) -> list[str]:
    """Return the images of a request or a message, which are base64. Raises APIError (400) for anything else."""
    images = fields.get("images") or []
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise field_error(where, "must be a list of images in base64")
    return images


def with_images(text: str, images: Sequence[str], where: str) -> object:
    """Return the content of a message with images before its text; only the text without images."""
    if not images:
        return text
    parts: list[Mapping[str, str]] = [
        {"type": "image_url", "image_url": f"data:;base64,{image}", "field": f"{where}[{index}]"}
        for index, image in enumerate(images)
    ]
    return [*parts, {"type": "text", "text": text}]


# --- response ---


def message_chunk(field: str, text: str) -> Chunk:
    return {"message": {"role": "assistant", "content": "", field: text}}


def response_chunk(field: str, text: str) -> Chunk:
    return {"response": text} if field == "content" else {"response": "", "thinking": text}


def tool_call_chunk(tool_calls: "Sequence[ToolCall]") -> Chunk:
    entries = [{"function": {"name": call.name, "arguments": call.arguments}} for call in tool_calls]
    return {"message": {"role": "assistant", "content": "", "tool_calls": entries}}


async def respond(request: Request, generation_request: GenerationRequest) -> Response:
    """Return a streaming response, or one object with the merged chunks."""
    dispatcher: Dispatcher = request.app.state.dispatcher
    chunks = generate_chunks(generation_request, dispatcher)
    if generation_request.stream:
        response: Response = await streaming.stream_response(chunks, streaming.LINES)
    else:
        all_chunks = [chunk async for chunk in chunks]
        last = all_chunks[-1]
        merged = merge_chunks(all_chunks) | {key: last[key] for key in last if key not in MERGED_FIELDS}
        response = JSONResponse(merged)
    for text in generation_request.warnings:
        response.headers.append("warning", f'299 localinfer "{text}"')
    return response


def warn_of_small_context(generation_request: GenerationRequest, n_ctx: int) -> None:
    """Warn in a header and in the log that the context is smaller than the client wants. It is that of the server."""
    if generation_request.num_ctx > n_ctx:
        text = f"options.num_ctx: {generation_request.num_ctx} is more than the context of the server, {n_ctx} tokens"
        generation_request.warnings.append(text)
        warnings.warn(f"{text}; --ctx-size sets a larger one", stacklevel=2)


MERGED_FIELDS = ("message", "response", "thinking", "logprobs")


def merge_chunks(chunks: list[Chunk]) -> Chunk:
    """Concatenate the texts, tool calls and logprobs of all chunks."""
    merged: Chunk = {}
    for chunk in chunks:
        for key in ("response", "thinking", "logprobs"):
            if key in chunk:
                merged[key] = merged[key] + chunk[key] if key in merged else chunk[key]
        if "message" in chunk:
            message = merged.setdefault("message", {"role": "assistant", "content": ""})
            for field in ("content", "thinking", "tool_calls"):
                if field in chunk["message"]:
                    added = chunk["message"][field]
                    message[field] = message[field] + added if field in message else added
    return merged


async def generate_chunks(generation_request: GenerationRequest, dispatcher: Dispatcher) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of a response, and then set when the model is unloaded."""
    start = perf_counter_ns()
    async with dispatcher.lease(generation_request.model_name) as lease:
        try:
            async with aclosing(lease_chunks(lease, generation_request, start)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            dispatcher.keep_alive(lease.name, generation_request.keep_alive)
        if generation_request.keep_alive == 0:
            await dispatcher.unload(lease)


async def lease_chunks(lease: Lease, generation_request: GenerationRequest, start: int) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of a response. `start` is the time of the request in nanoseconds of `perf_counter_ns`."""
    loaded = perf_counter_ns()
    warn_of_small_context(generation_request, lease.model.n_ctx)
    head = {"model": lease.name}
    if generation_request.prompt is None:
        reason = "unload" if generation_request.keep_alive == 0 else "load"
        yield head | created_at() | generation_request.make_chunk("content", "") | {"done": True, "done_reason": reason}
        return
    async with lease.generate(generation_request.prompt, generation_request.options) as generation:
        async for piece in generation.pieces:
            if piece.kind != "tag" and (piece.text or piece.logprob is not None):
                probabilities = logprobs(piece, generation_request, lease.model)
                text = generation_request.make_chunk(FIELD_BY_KIND[piece.kind], piece.text)
                yield head | created_at() | text | probabilities | {"done": False}
            if piece.calls:
                yield head | created_at() | tool_call_chunk(piece.calls) | {"done": False}
    end = {"done": True, "done_reason": generation.finish_reason, "total_duration": perf_counter_ns() - start}
    end |= {"load_duration": loaded - start} | durations(generation.stats)
    yield head | created_at() | generation_request.make_chunk("content", "") | end


def logprobs(piece: "Piece", generation_request: GenerationRequest, model: Any) -> Chunk:
    if generation_request.top_logprobs is None or piece.logprob is None:
        return {}
    return {"logprobs": [chat_logprob(piece, generation_request.top_logprobs, model)]}


def created_at() -> Chunk:
    return {"created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def durations(stats: "Stats") -> Chunk:
    return {
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": int(1e9 * stats.prompt_seconds),
        "eval_count": stats.generated_tokens,
        "eval_duration": int(1e9 * stats.generate_seconds),
    }
