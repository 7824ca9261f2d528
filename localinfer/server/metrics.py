"""`/metrics`: statistics of the server in the Prometheus text format.

Quantiles cover the most recent responses. Prometheus derives rates from the sums and counts.
"""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from localinfer.server.dispatcher import Dispatcher

if TYPE_CHECKING:
    from localinfer.generation.pieces import Stats

WINDOW = 1000  # number of recent responses that quantiles cover
QUANTILES = (0.5, 0.95)


class Summary:
    """A Prometheus summary: the count and sum of all values, and quantiles of the recent ones."""

    def __init__(self) -> None:
        self.count, self.sum = 0, 0.0
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self._recent.append(value)

    def quantile(self, fraction: float) -> float:
        """Return a quantile of the recent values; NaN if there are none."""
        values = sorted(self._recent)
        return values[min(int(fraction * len(values)), len(values) - 1)] if values else float("nan")


class Metrics:
    """Collects statistics as the observer of a dispatcher. A request counts once its generation has started."""

    def __init__(self) -> None:
        self.queue = Summary()
        self.first_token = Summary()
        self.between_tokens = Summary()
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.prompt_seconds = self.generate_seconds = 0.0

    def on_slot_acquired(self, seconds: float) -> None:
        self.queue.add(seconds)

    def on_generation_end(self, stats: "Stats", time_to_first_token: float) -> None:
        self.prompt_tokens += stats.prompt_tokens
        self.cached_tokens += stats.reused_tokens
        self.generated_tokens += stats.generated_tokens
        self.prompt_seconds += stats.prompt_seconds
        self.generate_seconds += stats.generate_seconds
        if time_to_first_token:
            self.first_token.add(time_to_first_token)
        if stats.generated_tokens > 1:
            self.between_tokens.add(stats.generate_seconds / stats.generated_tokens)

    def lines(self, dispatcher: Dispatcher) -> Iterator[str]:
        yield from format_summary("queue_seconds", "Time a request waits for a slot.", self.queue)
        yield from format_summary(
            "time_to_first_token_seconds", "Time from a request's arrival to its first token.", self.first_token
        )
        yield from format_summary(
            "time_between_tokens_seconds", "Mean time per generated token of each response.", self.between_tokens
        )
        yield from format_metric("prompt_tokens_total", "counter", "Prompt tokens.", self.prompt_tokens)
        yield from format_metric(
            "cached_tokens_total", "counter", "Prompt tokens reused from the KV cache.", self.cached_tokens
        )
        yield from format_metric("generated_tokens_total", "counter", "Generated tokens.", self.generated_tokens)
        yield from format_metric("prompt_seconds_total", "counter", "Time spent in prefill.", self.prompt_seconds)
        yield from format_metric("generate_seconds_total", "counter", "Time spent in decoding.", self.generate_seconds)
        yield from format_metric(
            "requests_waiting", "gauge", "Requests waiting for a slot.", dispatcher.slots.n_waiting
        )
        yield from format_metric(
            "slots_busy", "gauge", "Slots that process a request.", sum(slot.is_busy for slot in dispatcher.slots.all)
        )
        yield from format_metric("models_loaded", "gauge", "Loaded models.", len(dispatcher.model_cache.loaded))


def format_metric(name: str, kind: str, help_text: str, value: float) -> Iterator[str]:
    yield f"# HELP localinfer_{name} {help_text}"
    yield f"# TYPE localinfer_{name} {kind}"
    yield f"localinfer_{name} {value}"


def format_summary(name: str, help_text: str, values: Summary) -> Iterator[str]:
    yield f"# HELP localinfer_{name} {help_text}"
    yield f"# TYPE localinfer_{name} summary"
    for quantile in QUANTILES:
        yield f'localinfer_{name}{{quantile="{quantile}"}} {values.quantile(quantile)}'
    yield f"localinfer_{name}_sum {values.sum}"
    yield f"localinfer_{name}_count {values.count}"


async def metrics_endpoint(request: Request) -> Response:
    """`/metrics`: all statistics in the Prometheus text format."""
    metrics: Metrics = request.app.state.metrics
    text = "\n".join(metrics.lines(request.app.state.dispatcher)) + "\n"
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")
