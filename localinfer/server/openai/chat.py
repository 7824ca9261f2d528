"""`/v1/chat/completions`: generate the assistant's next message of a conversation."""

import json
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import field_error
from localinfer.server.http.json_output import EncodedEvent, EventTemplate
from localinfer.server.lease import Lease
from localinfer.server.openai.common_fields import CommonFields, parse_common_fields
from localinfer.server.openai.logprobs import chat_logprob
from localinfer.server.openai.usage import prefill_timings, timings, usage
from localinfer.server.parallel_choices import run_choices
from localinfer.server.requests.prefill_reports import PrefillReport
from localinfer.server.requests.prompts import ChatPrompt
from localinfer.server.requests.request_fields import (
    Fields,
    constraint_fields,
    constraint_options,
    get,
    get_int,
    length_options,
    sampling_options,
)
from localinfer.server.requests.tool_fields import parse_tool_fields
from localinfer.server.settings import SYSTEM_FINGERPRINT

if TYPE_CHECKING:
    from localinfer.chat_template.prompt import Prompt
    from localinfer.generation.pieces import Piece, Stats, ToolCall
    from localinfer.model import Model

MAX_TOKENS_FIELDS = ("max_completion_tokens", "max_tokens", "n_predict")
MAX_LOGPROBS = 20
FIELD_BY_KIND = {"text": "content", "reasoning": "reasoning_content"}  # kind of piece -> field of a message


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A parsed request."""

    common: CommonFields
    prompt: ChatPrompt
    top_logprobs: int | None  # None: no logprobs requested


# --- request ---


def parse_chat_request(fields: Fields) -> ChatRequest:
    """Parse a request. Raises APIError (400) that names the first invalid field."""
    top = get_int(fields, "top_logprobs", 0, 0, MAX_LOGPROBS)
    wants_logprobs = get(fields, "logprobs", bool, False)
    if top and not wants_logprobs:
        raise field_error("top_logprobs", "needs logprobs to be true")
    options = sampling_options(fields) | length_options(fields, *MAX_TOKENS_FIELDS) | constraint_options(fields)
    if wants_logprobs:
        options |= {"logprobs": max(top, 1)}
    return ChatRequest(parse_common_fields(fields, options), parse_chat_prompt(fields), top if wants_logprobs else None)


def parse_chat_prompt(fields: Fields) -> ChatPrompt:
    """Parse messages, tools and template options. If the last message has the role `assistant`, the model continues it.

    Raises APIError (400) for an invalid field.
    """
    if "chat_template" in fields:
        raise field_error("chat_template", "cannot be set in a request; the server's --chat-template sets it")
    if get(fields, "modalities", list, ["text"]) != ["text"] or fields.get("audio"):
        raise field_error("modalities", "must be text; audio is not supported")
    messages = get(fields, "messages", list, [])
    if not messages:
        raise field_error("messages", "must be a list of at least one message")
    continues_last = parse_continuation(fields, messages)
    kwargs = get(fields, "chat_template_kwargs", dict, {})
    if effort := get(fields, "reasoning_effort", str, ""):
        kwargs = {"reasoning_effort": effort, "enable_thinking": effort != "none"} | kwargs
    tools = replace(parse_tool_fields(fields), is_streamed=get(fields, "stream", bool, False))
    return ChatPrompt(
        messages, tools, kwargs, continue_final_message=continues_last,
        add_generation_prompt=get(fields, "add_generation_prompt", bool, True),
        field_of=constraint_fields(fields) | tools.field_of)  # fmt: skip


def parse_continuation(fields: Fields, messages: Sequence[Any]) -> bool:
    """Return whether the model continues the last message: one of the assistant, unless the request says otherwise."""
    is_answer = is_assistant(messages[-1]) and not messages[-1].get("tool_calls")
    if get(fields, "continue_final_message", bool, False):
        if fields.get("add_generation_prompt"):
            raise field_error("continue_final_message", "excludes add_generation_prompt")
        if not is_answer:
            raise field_error("continue_final_message", "the last message must be one of the assistant")
    if is_answer and len(messages) > 1 and is_assistant(messages[-2]) and not messages[-2].get("tool_calls"):
        raise field_error("messages", "two messages of the assistant cannot be the last ones")
    return get(fields, "continue_final_message", bool, is_answer)


def is_assistant(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


# --- response ---


async def chunks(chat_request: ChatRequest, dispatcher: Dispatcher) -> AsyncGenerator[EncodedEvent, None]:
    """Yield the chunks of a streamed response.

    The last chunk of each choice has the finish reason and llama.cpp's timings.
    """
    all_stats: list[Stats] = []

    async def generate_choice(index: int, lease: Lease) -> AsyncGenerator[EncodedEvent, None]:
        def event(delta: Mapping[str, Any], *more: Any) -> dict[str, Any]:
            return head | {"choices": [chunk_choice(index, delta, *more)]}

        common, template = chat_request.common, EventTemplate(lambda text: event({"content": text}))
        is_plain = chat_request.top_logprobs is None and not common.timings_per_token
        async with lease.generate(
            chat_request.prompt, common.options_for(index), reports_prefill=common.reports_prefill
        ) as generation:
            yield event({"role": "assistant", "content": None})
            tool_calls: list[ToolCall] = []
            streamed_calls: set[int] = set()
            async for piece in generation.events:
                if isinstance(piece, PrefillReport):
                    yield event({}) | {"prompt_progress": piece.as_fields(), "timings": prefill_timings(piece)}
                    continue
                if piece.kind == "text" and piece.text and not piece.calls and is_plain:
                    yield template.render(piece.text)
                elif delta := piece_delta(piece, len(tool_calls), streamed_calls):
                    times = {"timings": timings(generation.stats)} if common.timings_per_token else {}
                    yield event(delta, choice_logprobs([piece], chat_request, lease.model)) | times
                tool_calls += piece.calls
        all_stats.append(generation.stats)
        reason = generation.chat_finish_reason(has_calls=bool(tool_calls))
        yield event({}, None, reason) | {"timings": timings(generation.stats)}

    async with dispatcher.lease(chat_request.common.model_name, chat_request.common.slot) as lease:
        head = response_head("chat.completion.chunk", lease)
        head |= {"usage": None} if chat_request.common.include_usage else {}
        choices = [partial(generate_choice, index) for index in range(chat_request.common.n)]
        async with aclosing(run_choices(choices, lease, dispatcher)) as events:
            async for chunk in events:
                yield chunk
    if chat_request.common.include_usage:
        yield head | {"choices": [], "usage": usage(all_stats), "timings": timings(all_stats[-1])}


def piece_delta(piece: "Piece", n_tool_calls: int, streamed_calls: set[int]) -> dict[str, Any]:
    """Return the fields that a piece adds to a message that already has `n_tool_calls` complete tool calls.

    `streamed_calls` are the indices of the calls whose parts were already sent.
    """
    delta: dict[str, Any] = {}
    if piece.kind != "tag" and (piece.text or piece.logprob is not None):
        delta[FIELD_BY_KIND[piece.kind]] = piece.text
    parts = []
    for part in piece.call_parts:
        if part.index in streamed_calls:
            parts.append({"index": part.index, "function": {"arguments": part.text}})
        else:
            function = {"name": part.name, "arguments": part.text}
            parts.append({"index": part.index, "id": part.id, "type": "function", "function": function})
        streamed_calls.add(part.index)
    complete = enumerate(piece.calls, n_tool_calls)
    parts += [{"index": index} | tool_call_object(call) for index, call in complete if index not in streamed_calls]
    if parts:
        delta["tool_calls"] = parts
    return delta


def tool_call_object(call: "ToolCall") -> dict[str, Any]:
    """Return the tool call in OpenAI's format, with its arguments as a JSON string."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return call.as_entry() | {"function": {"name": call.name, "arguments": arguments}}


def chunk_choice(
    index: int, delta: Mapping[str, Any], logprobs: Mapping[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


async def completion(chat_request: ChatRequest, dispatcher: Dispatcher) -> dict[str, Any]:
    """Return the whole response."""
    all_stats: list[Stats] = []

    async def generate_choice(index: int, lease: Lease) -> AsyncGenerator[dict[str, Any], None]:
        async with lease.generate(chat_request.prompt, chat_request.common.options_for(index)) as generation:
            pieces = [piece async for piece in generation.pieces]
        all_stats.append(generation.stats)
        message = build_message(pieces)
        yield {
            "index": index,
            "message": message,
            "logprobs": choice_logprobs(pieces, chat_request, lease.model),
            "finish_reason": generation.chat_finish_reason(has_calls="tool_calls" in message),
        }

    async with dispatcher.lease(chat_request.common.model_name, chat_request.common.slot) as lease:
        generators = [partial(generate_choice, index) for index in range(chat_request.common.n)]
        choices = [choice async for choice in run_choices(generators, lease, dispatcher)]
        counts = {"usage": usage(all_stats), "timings": timings(all_stats[-1])}
        if chat_request.common.is_verbose or dispatcher.settings.is_verbose:
            ids = (await render(chat_request.prompt, lease, counts_media=False)).ids
            counts |= {"__verbose": {"prompt": lease.model.detokenize(ids, special=True)}}
        return response_head("chat.completion", lease) | {"choices": sorted(choices, key=itemgetter("index"))} | counts


async def render(chat: ChatPrompt, lease: Lease, *, counts_media: bool = True) -> "Prompt":
    """Return the prompt without generating anything: see `ChatPrompt.render`."""
    allowed = replace(chat, access=lease.access)
    return await lease.call(lambda: allowed.render(lease.model, {}, counts_media=counts_media))


def build_message(pieces: "list[Piece]") -> dict[str, Any]:
    texts = {kind: "".join(piece.text for piece in pieces if piece.kind == kind) for kind in FIELD_BY_KIND}
    reasoning = {"reasoning_content": texts["reasoning"].strip()} if texts["reasoning"] else {}
    if calls := [tool_call_object(call) for piece in pieces for call in piece.calls]:
        return {"role": "assistant", "content": texts["text"] or None, **reasoning, "tool_calls": calls}
    return {"role": "assistant", "content": texts["text"], **reasoning}


def choice_logprobs(pieces: "list[Piece]", chat_request: ChatRequest, model: "Model") -> dict[str, Any] | None:
    n_top = chat_request.top_logprobs
    if n_top is None:
        return None
    entries = [
        chat_logprob(piece, n_top, model) for piece in pieces if piece.kind == "text" and piece.logprob is not None
    ]
    return {"content": entries}


def response_head(kind: str, lease: Lease, prefix: str = "chatcmpl-") -> dict[str, Any]:
    return {
        "id": f"{prefix}{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": lease.name,
        "system_fingerprint": SYSTEM_FINGERPRINT,
    }
