"""`/metrics`: how the server does, in the words of Prometheus.

Quantiles are of the last answers; rates are for Prometheus to make of sums and counts.
"""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from localinfer.server.desk import Desk

if TYPE_CHECKING:
    from localinfer.generation.pieces import Stats

LAST = 1000  # answers of which quantiles are told
QUANTILES = (0.5, 0.95)


class Summary:
    def __init__(self) -> None:
        self.count, self.sum = 0, 0.0
        self._last: deque[float] = deque(maxlen=LAST)

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self._last.append(value)

    def quantile(self, share: float) -> float:
        """The smallest of the last values that so many do not exceed; NaN where there is none."""
        values = sorted(self._last)
        return values[min(int(share * len(values)), len(values) - 1)] if values else float("nan")


class Metrics:
    """Observes a desk. Only what has begun to be answered counts as an answer."""

    def __init__(self) -> None:
        self.queue = Summary()
        self.first_token = Summary()
        self.between_tokens = Summary()
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.prompt_seconds = self.generate_seconds = 0.0

    def waited(self, seconds: float) -> None:
        self.queue.add(seconds)

    def ended(self, stats: "Stats", first: float) -> None:
        self.prompt_tokens += stats.prompt_tokens
        self.cached_tokens += stats.reused_tokens
        self.generated_tokens += stats.generated_tokens
        self.prompt_seconds += stats.prompt_seconds
        self.generate_seconds += stats.generate_seconds
        if first:
            self.first_token.add(first)
        if stats.generated_tokens > 1:
            self.between_tokens.add(stats.generate_seconds / stats.generated_tokens)

    def lines(self, desk: Desk) -> Iterator[str]:
        yield from summary("queue_seconds", "Time that a request waited for a slot.", self.queue)
        yield from summary("time_to_first_token_seconds", "From a request to its first token.", self.first_token)
        yield from summary("time_between_tokens_seconds", "Mean of each answer.", self.between_tokens)
        yield from one("prompt_tokens_total", "counter", "Tokens of prompts.", self.prompt_tokens)
        yield from one("cached_tokens_total", "counter", "Of these, read before.", self.cached_tokens)
        yield from one("generated_tokens_total", "counter", "Tokens of answers.", self.generated_tokens)
        yield from one("prompt_seconds_total", "counter", "Time in which prompts were read.", self.prompt_seconds)
        yield from one("generate_seconds_total", "counter", "Time in which answers were made.", self.generate_seconds)
        yield from one("requests_waiting", "gauge", "Requests in line.", desk.slots.waiting)
        yield from one("slots_busy", "gauge", "Slots at work.", sum(slot.busy for slot in desk.slots.all))
        yield from one("models_loaded", "gauge", "Models in memory.", len(desk.shelf.loaded))


def one(name: str, kind: str, about: str, value: float) -> Iterator[str]:
    yield f"# HELP localinfer_{name} {about}"
    yield f"# TYPE localinfer_{name} {kind}"
    yield f"localinfer_{name} {value}"


def summary(name: str, about: str, values: Summary) -> Iterator[str]:
    yield f"# HELP localinfer_{name} {about}"
    yield f"# TYPE localinfer_{name} summary"
    for share in QUANTILES:
        yield f'localinfer_{name}{{quantile="{share}"}} {values.quantile(share)}'
    yield f"localinfer_{name}_sum {values.sum}"
    yield f"localinfer_{name}_count {values.count}"


async def told(request: Request) -> Response:
    metrics: Metrics = request.app.state.metrics
    text = "\n".join(metrics.lines(request.app.state.desk)) + "\n"
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")
