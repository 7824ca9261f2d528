"""`/metrics`: statistics of the server in the Prometheus text format.

Quantiles cover the most recent responses. Prometheus derives rates from the sums and counts.
"""

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import APIError
from localinfer.server.http.connection import CasedHeaderName

if TYPE_CHECKING:
    from localinfer.generation.pieces import Stats

START_TIME = int(time.time())  # of this process
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


class Rate:
    """Tokens per second since the value was last read, as the gauges of llama.cpp's server."""

    def __init__(self) -> None:
        self._tokens, self._seconds = 0, 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self._tokens += tokens
        self._seconds += seconds

    def read(self) -> float:
        """Return the rate, and begin anew; 0 if nothing was computed."""
        rate = self._tokens / self._seconds if self._seconds else 0.0
        self._tokens, self._seconds = 0, 0.0
        return rate


class Metrics:
    """Collects statistics as the observer of a dispatcher. A request counts once its generation has started."""

    def __init__(self) -> None:
        self.queue = Summary()
        self.first_token = Summary()
        self.between_tokens = Summary()
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.prompt_seconds = self.generate_seconds = 0.0
        self.drafts = self.drafted_tokens = self.accepted_tokens = self.longest_sequence = 0
        self.prefill_rate, self.decode_rate = Rate(), Rate()

    def on_slot_acquired(self, seconds: float) -> None:
        self.queue.add(seconds)

    def on_generation_end(self, stats: "Stats", time_to_first_token: float) -> None:
        self.prompt_tokens += stats.prompt_tokens
        self.cached_tokens += stats.reused_tokens
        self.generated_tokens += stats.generated_tokens
        self.prompt_seconds += stats.prompt_seconds
        self.generate_seconds += stats.generate_seconds
        self.drafts += stats.drafts
        self.drafted_tokens += stats.drafted_tokens
        self.accepted_tokens += stats.accepted_tokens
        self.longest_sequence = max(self.longest_sequence, stats.prompt_tokens + stats.generated_tokens)
        self.prefill_rate.add(stats.prompt_tokens - stats.reused_tokens, stats.prompt_seconds)
        self.decode_rate.add(max(stats.generated_tokens - 1, 0), stats.generate_seconds)
        if time_to_first_token:
            self.first_token.add(time_to_first_token)
        if stats.generated_tokens > 1:
            self.between_tokens.add(stats.generate_seconds / stats.generated_tokens)

    def on_prompts_embedded(self, tokens: int, seconds: float) -> None:
        self.prompt_tokens += tokens
        self.prompt_seconds += seconds
        self.prefill_rate.add(tokens, seconds)

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
            "requests_waiting", "gauge", "Requests waiting for a slot or a model.", dispatcher.n_waiting
        )
        yield from format_metric(
            "slots_busy", "gauge", "Slots that process a request.", sum(slot.is_busy for slot in dispatcher.slots.all)
        )
        yield from format_metric("models_loaded", "gauge", "Loaded models.", len(dispatcher.model_cache.loaded))


def format_metric(
    name: str, kind: str, help_text: str, value: float, prefix: str = "localinfer_"
) -> Iterator[str]:
    yield f"# HELP {prefix}{name} {help_text}"
    yield f"# TYPE {prefix}{name} {kind}"
    yield f"{prefix}{name} {value}"


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
    dispatcher: Dispatcher = request.app.state.dispatcher
    if not dispatcher.settings.has_metrics:
        raise APIError(501, "/metrics: the server was started with --no-metrics")
    lines = [*metrics.lines(dispatcher), *llama_cpp_lines(metrics, dispatcher)]
    response = PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")
    response.raw_headers.append((CasedHeaderName(b"Process-Start-Time-Unix"), str(START_TIME).encode()))
    return response


def llama_cpp_lines(metrics: Metrics, dispatcher: Dispatcher) -> Iterator[str]:
    """Yield the metrics of llama.cpp's server, under its names."""
    unloaded = dispatcher.model_cache
    runners = [model.engine.runner for model in unloaded.loaded.values()]
    n_batches = unloaded.n_batches + sum(each.n_batches for each in runners)
    n_sequences = unloaded.n_batched + sum(each.n_batched for each in runners)
    n_busy = sum(slot.is_busy for slot in dispatcher.slots.all)
    for kind, name, help_text, value in (
        ("counter", "prompt_tokens_total", "Prompt tokens evaluated.", metrics.prompt_tokens - metrics.cached_tokens),
        ("counter", "prompt_tokens_cached_total", "Prompt tokens reused from the KV cache.", metrics.cached_tokens),
        ("counter", "prompt_seconds_total", "Time spent in prefill.", metrics.prompt_seconds),
        ("counter", "tokens_predicted_total", "Generated tokens.", metrics.generated_tokens),
        ("counter", "tokens_predicted_seconds_total", "Time spent in decoding.", metrics.generate_seconds),
        ("counter", "n_decode_total", "Batches evaluated.", n_batches),
        ("counter", "n_tokens_max", "Tokens of the longest sequence.", metrics.longest_sequence),
        ("counter", "spec_decode_num_drafts_total", "Drafts verified.", metrics.drafts),
        ("counter", "spec_decode_num_draft_tokens_total", "Draft tokens verified.", metrics.drafted_tokens),
        ("counter", "spec_decode_num_accepted_tokens_total", "Draft tokens accepted.", metrics.accepted_tokens),
        ("gauge", "prompt_tokens_seconds", "Prefill speed since the last scrape.", metrics.prefill_rate.read()),
        ("gauge", "predicted_tokens_seconds", "Decode speed since the last scrape.", metrics.decode_rate.read()),
        ("gauge", "requests_processing", "Requests being processed.", n_busy),
        ("gauge", "requests_deferred", "Requests waiting for a slot or a model.", dispatcher.n_waiting),
        ("gauge", "n_busy_slots_per_decode", "Sequences in a batch, on average.", n_sequences / max(n_batches, 1)),
    ):
        yield from format_metric(name, kind, help_text, value, prefix="llamacpp:")
