"""The Prometheus metrics."""

import math
import re
import time

import pytest
from server_process import ServerProcess

pytest.importorskip("starlette", reason="there is no package starlette")
from localinfer.server.metrics import Summary

LLAMA_CPP_COUNTERS = (
    "prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total", "tokens_predicted_total",
    "tokens_predicted_seconds_total", "n_decode_total", "n_tokens_max", "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total",
)  # fmt: skip
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


def llama_cpp(server: ServerProcess) -> dict[str, float]:
    """Return the metrics with the names of llama.cpp's server."""
    answer = server.get("/metrics")
    assert int(answer.headers["process-start-time-unix"]) <= time.time()
    lines = [line.split() for line in answer.body.decode().splitlines() if line.startswith("llamacpp:")]
    return {name.removeprefix("llamacpp:"): float(value) for name, value in lines}


def test_names_of_llama_cpp(server: ServerProcess) -> None:
    before = llama_cpp(server)
    request = {"prompt": "metrics of llama.cpp " * 20, "n_predict": 8, "ignore_eos": True}
    all_timings = [server.post("/completion", request).body["timings"] for _ in range(2)]
    after = llama_cpp(server)
    gained = {name: after[name] - before[name] for name in LLAMA_CPP_COUNTERS}
    assert gained["prompt_tokens_total"] == sum(each["prompt_n"] for each in all_timings)
    assert gained["prompt_tokens_cached_total"] == sum(each["cache_n"] for each in all_timings) > 0
    assert gained["tokens_predicted_total"] == 16
    assert gained["n_decode_total"] >= 2
    assert after["n_tokens_max"] >= all_timings[0]["prompt_n"] + 8
    assert after["requests_processing"] == after["requests_deferred"] == 0
    assert after["predicted_tokens_seconds"] > 0
    assert llama_cpp(server)["predicted_tokens_seconds"] == 0  # since the last scrape


def test_quantiles() -> None:
    summary = Summary()
    assert math.isnan(summary.quantile(0.5))
    for value in range(2000):
        summary.add(value)
    assert (summary.count, summary.quantile(0.5), summary.quantile(0.95)) == (2000, 1500, 1950)
