"""The responses of `/v1/messages`, whole and as events."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from localinfer.server.anthropic.content_blocks import ContentBlocks, join_events
from localinfer.server.anthropic.request import MessageRequest
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.idle_marks import with_idle_marks

if TYPE_CHECKING:
    from localinfer.generation.pieces import Stats

Event = dict[str, Any]
PING = {"type": "ping"}
PING_SECONDS = 5.0  # without any other event


async def message(message_request: MessageRequest, dispatcher: Dispatcher) -> Event:
    """Return the whole response."""
    all_events = [event async for event in events(message_request, dispatcher)]
    by_type = {event["type"]: event for event in all_events}
    end = by_type["message_delta"]
    content = {"content": join_events(all_events), "usage": end["usage"]}
    return {**by_type["message_start"]["message"], **end["delta"], **content}


async def events(message_request: MessageRequest, dispatcher: Dispatcher) -> AsyncGenerator[Event, None]:
    """Yield the events of a response.

    message_start has the number of tokens that were read, and follows when they are read; until then there are pings.
    """
    async with dispatcher.lease(message_request.model_name) as lease:
        options = message_request.options_for(lease.model)
        async with lease.generate(message_request.prompt, options) as generation:
            stats, blocks, has_begun = generation.stats, ContentBlocks(), False
            async with aclosing(with_idle_marks(generation.pieces, PING_SECONDS)) as pieces:
                async for piece in pieces:
                    if piece is None:
                        yield PING
                        continue
                    if not has_begun:
                        yield message_start(lease.name, usage(stats, message_request))
                        has_begun = True
                    for event in blocks.push(piece):
                        yield event
    if not has_begun:  # no token was generated
        yield message_start(lease.name, usage(stats, message_request))
    for event in blocks.close():
        yield event
    delta, counts = stop_fields(stats, blocks.n_calls), usage(stats, message_request)
    yield {"type": "message_delta", "delta": delta, "usage": counts}
    yield {"type": "message_stop"}


def message_start(model_name: str, usage: Event) -> Event:
    message: Event = {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model_name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    return {"type": "message_start", "message": message}


def stop_fields(stats: "Stats", n_calls: int) -> Event:
    """Return why the answer ended, in the terms of Anthropic's API."""
    match stats.finish_reason:
        case "stop" if n_calls:
            reason = "tool_use"
        case "stop" if stats.stop_string:
            return {"stop_reason": "stop_sequence", "stop_sequence": stats.stop_string}
        case "stop":
            reason = "end_turn"
        case "context":
            reason = "model_context_window_exceeded"
        case _:
            reason = "max_tokens"
    return {"stop_reason": reason, "stop_sequence": None}


def usage(stats: "Stats", message_request: MessageRequest) -> Event:
    """Return the token counts. The tokens of the prompt are the sum of the first three.

    Every evaluated token is kept in the prefix cache. They count as written to it if the client marks a prefix for
    caching, so that clients see what they expect.
    """
    evaluated = stats.prompt_tokens - stats.reused_tokens
    written = evaluated if message_request.has_cache_control else 0
    return {
        "input_tokens": evaluated - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": stats.reused_tokens,
        "output_tokens": stats.generated_tokens,
    }
