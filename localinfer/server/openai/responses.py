"""`/v1/responses`: OpenAI's Responses API for text and tool calls. The server stores nothing between requests."""

import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import to_api_error
from localinfer.server.lease import Generation
from localinfer.server.openai.chat import render
from localinfer.server.openai.response_items import OutputItems, new_id
from localinfer.server.openai.response_request import Item, ResponseRequest, parse_response_request
from localinfer.server.openai.usage import prefill_timings, timings
from localinfer.server.requests.prefill_reports import PrefillReport
from localinfer.server.requests.request_fields import Fields


async def response(response_request: ResponseRequest, dispatcher: Dispatcher) -> Item:
    """Return the whole response, which the last event carries. Raises the error of a response that failed."""
    *_, last = [event async for event in ResponseEvents(response_request).until_error(dispatcher)]
    result: Item = last["response"]
    return result


def events(response_request: ResponseRequest, dispatcher: Dispatcher) -> AsyncGenerator[Item, None]:
    """Yield the events of a streamed response. See `ResponseEvents.whole`."""
    return ResponseEvents(response_request).whole(dispatcher)


class ResponseEvents:
    """The events of one response."""

    def __init__(self, response_request: ResponseRequest) -> None:
        self._request = response_request
        self._numbers = itertools.count()
        self._head: Item = {}  # of the response, once it has begun
        self._output = OutputItems(self._event)

    async def whole(self, dispatcher: Dispatcher) -> AsyncGenerator[Item, None]:
        """Yield the events from response.created to response.completed, or to response.failed if an error ends the
        response; the last one carries the whole response. Raises an error before the first event.
        """
        try:
            async with aclosing(self.until_error(dispatcher)) as answer_events:
                async for each in answer_events:
                    yield each
        except Exception as error:
            if not self._head:
                raise
            for each in self._output.abort():
                yield each
            failed = {"status": "failed", "error": error_of(error), "output": self._output.items, "usage": None}
            yield self._event("failed", response=self._head | failed)

    async def until_error(self, dispatcher: Dispatcher) -> AsyncGenerator[Item, None]:
        """Yield the events of a response that no error ends, and raise any error."""
        request, output = self._request, self._output
        async with dispatcher.lease(request.model_name) as lease:
            async with lease.generate(
                request.prompt, request.options, reports_prefill=request.reports_prefill
            ) as generation:
                head = {"id": new_id("resp"), "object": "response", "created_at": int(time.time()), "model": lease.name}
                self._head = head | request.echoed_fields | {"error": None, "incomplete_details": None}
                initial = self._head | {"status": "in_progress", "output": [], "usage": None}
                yield self._event("created", response=initial)
                yield self._event("in_progress", response=initial)
                async for piece in generation.events:
                    if isinstance(piece, PrefillReport):
                        times = {"prompt_progress": piece.as_fields(), "timings": prefill_timings(piece)}
                        yield self._event("in_progress", response=initial, **times)
                        continue
                    times = {"timings": timings(generation.stats)} if request.timings_per_token else {}
                    for each in output.push(piece, **times):
                        yield each
            status, details = "completed", None
            if generation.finish_reason == "length":
                status, details = "incomplete", {"reason": "max_output_tokens"}
            for each in output.close(status):
                yield each
            end = {"status": status, "incomplete_details": details, "output": output.items}
            end |= {"usage": usage(generation, output)}
            yield self._event(status, response=self._head | end, timings=timings(generation.stats))

    def _event(self, kind: str, **more: Any) -> Item:
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **more}


def error_of(error: Exception) -> Item:
    """Return the error of a response that failed. Its code is never missing."""
    fields = to_api_error(error).error
    return fields | {"code": fields["code"] or fields["type"]}


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
