"""Models that are unloaded while nobody uses them."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess, wait_until


@pytest.fixture
def sleeping(tiny: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny, "--sleep-idle-seconds", "0.5") as served:
        assert wait_until(lambda: is_sleeping(served), 30)
        yield served


def is_sleeping(server: ServerProcess) -> bool:
    return bool(server.get("/props").body["is_sleeping"])


def test_requests_wake_a_model(sleeping: ServerProcess, tiny: Path) -> None:
    """Looking at the properties, the models and the metrics does not."""
    assert sleeping.get("/props").body["model_path"] == str(tiny)
    assert "meta" not in sleeping.get("/v1/models").body["data"][0]
    assert sleeping.get("/metrics").status == sleeping.get("/health").status == 200
    assert is_sleeping(sleeping)
    assert sleeping.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2}).status == 200
    assert not is_sleeping(sleeping)
    assert wait_until(lambda: is_sleeping(sleeping), 30)
    count = sleeping.post("/v1/responses/input_tokens", {"input": "Hello"}).body["input_tokens"]
    messages = [{"role": "user", "content": "Hello"}]
    assert sleeping.post("/v1/chat/completions/input_tokens", {"messages": messages}).body["input_tokens"] == count > 0
    assert not is_sleeping(sleeping)


def test_counters_outlive_a_model(sleeping: ServerProcess) -> None:
    def batches() -> float:
        lines = sleeping.get("/metrics").body.decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("llamacpp:n_decode_total "))

    sleeping.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True})
    before = batches()
    assert before >= 4
    assert wait_until(lambda: is_sleeping(sleeping), 30)
    assert batches() == before


def test_failed_requests_let_a_model_sleep(sleeping: ServerProcess) -> None:
    assert sleeping.post("/completion", {"prompt": [10**6]}).status == 400
    assert wait_until(lambda: is_sleeping(sleeping), 30)


def test_a_model_does_not_sleep_while_it_tokenizes(sleeping: ServerProcess) -> None:
    """That needs no slot, but its vocabulary or its chat template, for longer than the time until it sleeps."""
    connection = sleeping.connection()
    connection.request("POST", "/tokenize", json.dumps({"content": "Hello the " * 400_000}))
    answers: list[http.client.HTTPResponse] = []
    thread = threading.Thread(target=lambda: answers.append(connection.getresponse()))
    thread.start()
    assert wait_until(lambda: not is_sleeping(sleeping), 30)
    while not answers:
        assert not is_sleeping(sleeping) or answers
    thread.join()
    assert answers[0].status == 200
    connection.close()
    assert wait_until(lambda: is_sleeping(sleeping), 30)
