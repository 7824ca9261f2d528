"""`/completion`, and how `/infill` answers, too: texts continued in the format of llama.cpp's own API."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from localinfer.generation.pieces import NO_TOKEN
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http import streaming
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.lease import Generation, Lease
from localinfer.server.llama_cpp.completion_request import CompletionRequest, CompletionRun, parse_completion_request
from localinfer.server.openai.usage import prefill_timings, timings
from localinfer.server.parallel_choices import run_choices
from localinfer.server.requests.prefill_reports import PrefillReport
from localinfer.server.requests.request_fields import Fields, ping_interval, read_json_object

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece, Stats

Event = dict[str, Any]


async def completion(request: Request) -> Response:
    """`/completion`: continue texts, streaming or not."""
    fields, dispatcher = await read_json_object(request), request.app.state.dispatcher
    return await respond(parse_completion_request(fields), dispatcher, fields)


async def respond(request: CompletionRequest, dispatcher: Dispatcher, fields: Fields) -> Response:
    """Return the response, whose format is the same for `/completion` and `/infill`."""
    if request.is_streamed:
        interval = ping_interval(fields, dispatcher.settings.ping_interval)
        return await streaming.stream_response(events(request, dispatcher), streaming.EVENTS, interval)
    results: dict[int, Event] = {}
    async with aclosing(events(request, dispatcher)) as all_events:
        async for event in all_events:
            add_event(results.setdefault(event["index"], {"content": "", "tokens": []}), event)
    bodies = [response_body(results[index], request) for index in sorted(results)]
    return JSONResponse(bodies if request.is_list or request.n > 1 else bodies[0])


def add_event(result: Event, event: Event) -> None:
    """Add the event of a stream to the result of its choice."""
    result["content"] += event["content"]
    result["tokens"] += event["tokens"]
    if probabilities := event.get("completion_probabilities"):
        result.setdefault("completion_probabilities", []).extend(probabilities)
    if event["stop"]:
        result |= {name: value for name, value in event.items() if name not in result}


def response_body(result: Event, request: CompletionRequest) -> Event:
    """Return the fields of a whole response that the request asks for. `a/b` is the field `b` of the object `a`."""
    if not request.return_tokens:
        result = result | {"tokens": []}
    if not request.response_fields:
        return result
    chosen = {}
    for name in request.response_fields:
        value: Any = result
        for key in name.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            chosen[name] = value
    return chosen


async def events(request: CompletionRequest, dispatcher: Dispatcher) -> AsyncGenerator[Event, None]:
    """Yield an event for each piece of each choice, and at the end of a choice one with its statistics."""
    async with dispatcher.lease(request.model_name, request.slot) as lease:
        generators = [partial(run_events, run) for run in request.runs()]
        async with aclosing(run_choices(generators, lease, dispatcher)) as all_events:
            async for event in all_events:
                yield event


async def run_events(run: CompletionRun, lease: Lease) -> AsyncGenerator[Event, None]:
    """Yield the events of one choice."""
    request, head = run.request, {"index": run.index, "id_slot": lease.slot.number}
    async with lease.generate(run, run.options, reports_prefill=request.reports_prefill) as generation:
        answer = Answer(run, lease, generation)
        async for item in generation.events:
            if isinstance(item, PrefillReport):
                progress = {"prompt_progress": item.as_fields(), "timings": prefill_timings(item)}
                yield head | {"content": "", "tokens": [], "stop": False} | progress
            elif request.is_prefill_only:
                break
            else:
                yield head | answer.event(item)
                if answer.is_cut:
                    break
    yield head | answer.last_event()


class Answer:
    """The text of a choice while it is generated."""

    def __init__(self, run: CompletionRun, lease: Lease, generation: Generation) -> None:
        self._run, self._lease, self._generation = run, lease, generation
        self._text, self._n_tokens, self._start = "", 0, perf_counter()
        self.is_cut = False  # by one of the rules for lines

    @property
    def _stats(self) -> "Stats":
        return self._generation.stats

    def event(self, piece: "Piece") -> Event:
        """Return the event of the next piece. Sets `is_cut` if the text ends with it."""
        if not self._n_tokens:
            self._start = perf_counter()
        probabilities = self._run.probabilities(piece, self._n_tokens, self._lease.model)
        ids = [] if piece.id == NO_TOKEN else [piece.id]
        self._n_tokens += len(ids)
        previous = len(self._text)
        self._text += piece.text
        end = self._run.request.line_rules.end(self._text, perf_counter() - self._start)
        if end is not None:
            self.is_cut, self._text = True, self._text[:end]
        event: Event = {
            "content": self._text[previous:],
            "tokens": ids,
            "stop": False,
            "tokens_predicted": self._n_tokens,
            "tokens_evaluated": self._stats.prompt_tokens,
            **probabilities,
        }
        return event | ({"timings": timings(self._stats)} if self._run.request.timings_per_token else {})

    def last_event(self) -> Event:
        """Return the event with which the choice ends."""
        stats, model = self._stats, self._lease.model
        if self._run.request.is_prefill_only:
            stats = replace(stats, generated_tokens=0, generate_seconds=0.0)
        n_tokens = stats.prompt_tokens + stats.generated_tokens
        return {
            "content": "",
            "tokens": [],
            "stop": True,
            "model": self._lease.name,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": n_tokens,
            "generation_settings": self._run.settings | {"n_ctx": model.n_ctx},
            "prompt": model.detokenize(self._run.ids, special=True),
            "has_new_line": "\n" in self._text,
            "truncated": self._is_truncated(n_tokens, model.n_ctx),
            "stop_type": stop_type(stats),
            "stopping_word": stats.stop_string,
            "timings": timings(stats),
        }


    def _is_truncated(self, n_tokens: int, n_ctx: int) -> bool:
        """Return whether the context has ended the text, or has lost its beginning by a context shift."""
        reason = self._stats.finish_reason
        is_at_end = n_tokens == n_ctx and reason == "length" and self._run.ends_with_context
        return reason == "context" or n_tokens > n_ctx or is_at_end


def stop_type(stats: "Stats") -> str:
    """Return llama.cpp's name of what ended the text."""
    if stats.finish_reason != "stop":
        return "limit"
    return "word" if stats.stop_string else "eos"
