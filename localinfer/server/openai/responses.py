"""`/v1/responses`: OpenAI's Responses API for text and tool calls. The server stores nothing between requests."""

import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localinfer.server.api_errors import field_error
from localinfer.server.dispatcher import ChatPrompt, Dispatcher, Generation
from localinfer.server.openai.chat import render, tool_call_object
from localinfer.server.openai.usage import prefill_timings, timings
from localinfer.server.prefill_reports import PrefillReport
from localinfer.server.request_fields import (
    Fields,
    constraint_options,
    get,
    json_constraint_fields,
    length_options,
    sampling_options,
)
from localinfer.server.tool_fields import parse_tool_fields

if TYPE_CHECKING:
    from localinfer.generation.pieces import ToolCall

Item = dict[str, Any]
TEXT_TYPES = ("input_text", "output_text", "text")


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A parsed request."""

    model_name: str | None
    prompt: ChatPrompt
    options: Mapping[str, Any]
    echoed_fields: Item  # fields of the request that the response repeats
    reports_prefill: bool
    timings_per_token: bool


# --- request ---


def parse_response_request(fields: Fields) -> ResponseRequest:
    if fields.get("previous_response_id") or fields.get("conversation"):
        raise field_error("previous_response_id", "stored conversations are not supported; send all messages in input")
    format = get(get(fields, "text", dict, {}), "format", dict, {})
    response_format = {"type": format.get("type", "text"), "json_schema": {"schema": format.get("schema")}}
    options = (
        sampling_options(fields)
        | length_options(fields, "max_output_tokens")
        | constraint_options({"response_format": response_format})
    )
    tools = parse_tool_fields(fields)
    effort = get(fields, "reasoning", dict, {}).get("effort")
    kwargs = {"reasoning_effort": effort} if isinstance(effort, str) else {}
    echoed_fields = {name: fields.get(name) for name in ("instructions", "temperature", "top_p", "max_output_tokens")}
    echoed_fields |= {
        "tools": fields.get("tools") or [],
        "tool_choice": fields.get("tool_choice") or "auto",
        "parallel_tool_calls": tools.parallel,
        "metadata": {},
    }
    field_of = json_constraint_fields("text.format.schema") | tools.field_of
    prompt = ChatPrompt(parse_messages(fields), tools, kwargs, field_of=field_of)
    return ResponseRequest(
        get(fields, "model", str, "") or None, prompt, options, echoed_fields,
        reports_prefill=get(fields, "return_progress", bool, False),
        timings_per_token=get(fields, "timings_per_token", bool, False))  # fmt: skip


def parse_messages(fields: Fields) -> list[Item]:
    """Convert `instructions` and `input` to messages of the chat API. Raises APIError (400) if they are invalid."""
    value = fields.get("input")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise field_error("input", "must be a string, or a list of items")
    instructions = get(fields, "instructions", str, "")
    system_messages = [{"role": "system", "content": instructions}] if instructions else []
    return system_messages + [parse_message(item) for item in items if not is_reasoning(item)]


def is_reasoning(item: object) -> bool:
    """Return whether an item is the reasoning of an earlier response. Such items are ignored."""
    return isinstance(item, dict) and item.get("type") == "reasoning"


def parse_message(item: object) -> Item:
    """Convert an input item to a message of the chat API. Raises APIError (400) if it is of another kind."""
    match item:
        case {"type": "function_call", "name": name, "arguments": arguments, "call_id": id}:
            function = {"name": name, "arguments": arguments}
            call = {"id": id, "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case {"type": "function_call_output", "call_id": id, "output": output}:
            return {"role": "tool", "tool_call_id": id, "content": output}
        case {"role": role, "content": str(content)}:
            return {"role": role, "content": content}
        case {"role": role, "content": list(parts)}:
            return {"role": role, "content": "".join(map(parse_content_part, parts))}
    raise field_error("input", "must be a string, or a list of messages, function calls and function call outputs")


def parse_content_part(part: object) -> str:
    match part:
        case {"type": kind, "text": str(text)} if kind in TEXT_TYPES:
            return text
    raise field_error("input", "only text content is supported")


# --- response ---


async def response(response_request: ResponseRequest, dispatcher: Dispatcher) -> Item:
    """Return the whole response, which the last event carries."""
    *_, last = [event async for event in events(response_request, dispatcher)]
    result: Item = last["response"]
    return result


async def events(response_request: ResponseRequest, dispatcher: Dispatcher) -> AsyncGenerator[Item, None]:
    """Yield the events from response.created to response.completed; the last one carries the whole response."""
    numbers = itertools.count()

    def event(kind: str, **more: Any) -> Item:
        return {"type": f"response.{kind}", "sequence_number": next(numbers), **more}

    async with (
        dispatcher.lease(response_request.model_name) as lease,
        lease.generate(
            response_request.prompt, response_request.options, reports_prefill=response_request.reports_prefill
        ) as generation,
    ):
        head = {"id": new_id("resp"), "object": "response", "created_at": int(time.time()), "model": lease.name}
        head |= response_request.echoed_fields | {"error": None, "incomplete_details": None}
        initial = head | {"status": "in_progress", "output": [], "usage": None}
        yield event("created", response=initial)
        yield event("in_progress", response=initial)
        output = OutputItems()
        async for piece in generation.events:
            if isinstance(piece, PrefillReport):
                times = {"prompt_progress": piece.as_fields(), "timings": prefill_timings(piece)}
                yield event("in_progress", response=initial, **times)
                continue
            output.reasoning += piece.text if piece.kind == "reasoning" else ""
            output.tool_calls += piece.calls
            if piece.kind == "text" and piece.text:
                if not output.text:
                    yield event("output_item.added", output_index=0, item=output.message("in_progress"))
                    yield event("content_part.added", **output.position, part=content_part(""))
                output.text += piece.text
                times = {"timings": timings(generation.stats)} if response_request.timings_per_token else {}
                yield event("output_text.delta", **output.position, delta=piece.text, logprobs=[], **times)
        if generation.finish_reason == "length":
            output.status = "incomplete"
            head["incomplete_details"] = {"reason": "max_output_tokens"}
        for item in output.done_events(event):
            yield item
        end = head | {"status": output.status, "output": output.items, "usage": usage(generation)}
        yield event(output.status, response=end, timings=timings(generation.stats))


async def count_input_tokens(fields: Fields, dispatcher: Dispatcher) -> Item:
    """Return the number of tokens of the prompt of a request."""
    response_request = parse_response_request(fields)
    async with dispatcher.lease(response_request.model_name) as lease:
        prompt = await render(response_request.prompt, lease)
    return {"object": "response.input_tokens", "input_tokens": len(prompt.ids)}


class OutputItems:
    """The output items of a response: the message, the tool calls and the reasoning."""

    def __init__(self) -> None:
        self.text = self.reasoning = ""
        self.status = "completed"  # or "incomplete"; for the message and the response
        self.tool_calls: list[ToolCall] = []
        self.id = new_id("msg")
        self.position: Item = {"item_id": self.id, "output_index": 0, "content_index": 0}

    def message(self, status: str) -> Item:
        content = [] if status == "in_progress" else [content_part(self.text)]
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    @property
    def items(self) -> list[Item]:
        """All output items. The message comes first, because its events have the output index 0."""
        items = [self.message(self.status)] if self.text or not self.tool_calls else []
        return items + [function_call_item(call) for call in self.tool_calls] + self._reasoning_items

    @property
    def _reasoning_items(self) -> list[Item]:
        if not self.reasoning:
            return []
        content = [{"type": "reasoning_text", "text": self.reasoning.strip()}]
        return [{"id": f"rs_{self.id}", "type": "reasoning", "summary": [], "content": content}]

    def done_events(self, event: Callable[..., Item]) -> list[Item]:
        """Return the events that complete every item."""
        events = []
        if self.text:
            events.append(event("output_text.done", **self.position, text=self.text, logprobs=[]))
            events.append(event("content_part.done", **self.position, part=content_part(self.text)))
        for index, item in enumerate(self.items):
            if item["id"] != self.id or not self.text:
                events.append(event("output_item.added", output_index=index, item=item))
            events.append(event("output_item.done", output_index=index, item=item))
        return events


def content_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def function_call_item(call: "ToolCall") -> Item:
    function = tool_call_object(call)["function"]
    return {"id": f"fc_{call.id}", "type": "function_call", "status": "completed", "call_id": call.id, **function}


def usage(generation: Generation) -> Item:
    """Return the token counts in the format of the Responses API."""
    prompt_tokens, generated_tokens = generation.stats.prompt_tokens, generation.stats.generated_tokens
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": generation.stats.reused_tokens},
        "output_tokens": generated_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_tokens + generated_tokens,
    }


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
