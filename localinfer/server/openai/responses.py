"""`/v1/responses`: OpenAI's Responses API for text and tool calls. The server stores nothing between requests."""

import itertools
import time
from collections.abc import AsyncGenerator
from typing import Any

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.lease import Generation
from localinfer.server.openai.chat import render
from localinfer.server.openai.response_items import OutputItems, new_id
from localinfer.server.openai.response_request import Item, ResponseRequest, parse_response_request
from localinfer.server.openai.usage import prefill_timings, timings
from localinfer.server.prefill_reports import PrefillReport
from localinfer.server.request_fields import Fields


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

    async with dispatcher.lease(response_request.model_name) as lease:
        async with lease.generate(
            response_request.prompt, response_request.options, reports_prefill=response_request.reports_prefill
        ) as generation:
            head = {"id": new_id("resp"), "object": "response", "created_at": int(time.time()), "model": lease.name}
            head |= response_request.echoed_fields | {"error": None, "incomplete_details": None}
            initial = head | {"status": "in_progress", "output": [], "usage": None}
            yield event("created", response=initial)
            yield event("in_progress", response=initial)
            output = OutputItems(event)
            async for piece in generation.events:
                if isinstance(piece, PrefillReport):
                    times = {"prompt_progress": piece.as_fields(), "timings": prefill_timings(piece)}
                    yield event("in_progress", response=initial, **times)
                    continue
                times = {"timings": timings(generation.stats)} if response_request.timings_per_token else {}
                for each in output.push(piece, **times):
                    yield each
        status = "completed"
        if generation.finish_reason == "length":
            status, head["incomplete_details"] = "incomplete", {"reason": "max_output_tokens"}
        for each in output.close(status):
            yield each
        end = head | {"status": status, "output": output.items, "usage": usage(generation, output)}
        yield event(status, response=end, timings=timings(generation.stats))


async def count_input_tokens(fields: Fields, dispatcher: Dispatcher) -> Item:
    """Return the number of tokens of the prompt of a request."""
    response_request = parse_response_request(fields)
    async with dispatcher.lease(response_request.model_name) as lease:
        prompt = await render(response_request.prompt, lease)
    return {"object": "response.input_tokens", "input_tokens": len(prompt.ids)}


def usage(generation: Generation, output: OutputItems) -> Item:
    """Return the token counts in the format of the Responses API."""
    prompt_tokens, generated_tokens = generation.stats.prompt_tokens, generation.stats.generated_tokens
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": generation.stats.reused_tokens},
        "output_tokens": generated_tokens,
        "output_tokens_details": {"reasoning_tokens": output.n_reasoning_tokens},
        "total_tokens": prompt_tokens + generated_tokens,
    }
