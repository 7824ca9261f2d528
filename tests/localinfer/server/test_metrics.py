"""The Prometheus metrics."""

import math
import re

import pytest
from server_process import ServerProcess

pytest.importorskip("starlette", reason="there is no package starlette")
from localinfer.server.metrics import Summary

LINE = re.compile(r'(localinfer_\w+(?:\{quantile="[\d.]+"\})?) (\S+)')


def read(server: ServerProcess) -> dict[str, float]:
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {actual[1]: float(actual[2]) for actual in map(LINE.fullmatch, lines) if actual}


def test_responses_are_counted(server: ServerProcess) -> None:
    before = read(server)
    for _ in range(2):
        server.post("/v1/completions", {"prompt": "Hello the", "max_tokens": 5, "ignore_eos": True})
    after = read(server)
    assert after["localinfer_generated_tokens_total"] - before["localinfer_generated_tokens_total"] == 10
    assert after["localinfer_cached_tokens_total"] > before["localinfer_cached_tokens_total"]
    assert after["localinfer_time_to_first_token_seconds_count"] == 2
    assert 0 < after['localinfer_time_to_first_token_seconds{quantile="0.95"}'] < 60
    assert after["localinfer_slots_busy"] == after["localinfer_requests_waiting"] == 0


def test_quantiles() -> None:
    summary = Summary()
    assert math.isnan(summary.quantile(0.5))
    for value in range(2000):
        summary.add(value)
    assert (summary.count, summary.quantile(0.5), summary.quantile(0.95)) == (2000, 1500, 1950)
