"""Loads that take long: other requests are answered meanwhile, and a client cancels them."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from server_process import ServerProcess, wait_until
from tiny import tiny_llama

TEXT = "/v1/completions"
REQUEST = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}
SLOWLY = """\
import time, localinfer
load = localinfer.load
def slowly(name, *, progress, **keywords):
    for done in range(100 if "slow" in name else 0):
        time.sleep(0.05)
        progress("compile", done, 100)
    return load(name, progress=progress, **keywords)
localinfer.load = slowly
from cli.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("slow", "quick", "other"):
        tiny_llama(folder / f"{name}.gguf", n_ctx=4096)
    with ServerProcess(folder, "--models-max", 2, program=("-c", SLOWLY)) as served:
        yield served


def status(server: ServerProcess, name: str) -> Any:
    [model] = [each for each in server.get("/models").body["data"] if each["id"] == name]
    return model["status"]["value"]


def ask(server: ServerProcess, name: str) -> Any:
    return server.post(TEXT, REQUEST | {"model": name})


def test_a_load_is_cancelled(server: ServerProcess) -> None:
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(ask(server, "slow")))
    waiting.start()
    assert wait_until(lambda: status(server, "slow") == "loading", 10)
    queued = threading.Thread(target=lambda: answers.append(ask(server, "other")))
    queued.start()
    assert wait_until(lambda: status(server, "other") == "loading", 10)
    assert b"llamacpp:requests_deferred 2" in server.get("/metrics").body
    for name in ("other", "slow"):
        assert server.post("/models/unload", {"model": name}).body == {"success": True}
    for each in (waiting, queued):
        each.join(3)
    assert [each.status for each in answers] == [400, 400]
    assert all("was unloaded while it was loading" in each.body["error"]["message"] for each in answers)
    assert [status(server, name) for name in ("slow", "other")] == ["unloaded", "unloaded"]
    assert "failed" not in server.get("/models").body["data"][0]["status"]


def test_loaded_models_answer_while_another_one_loads(server: ServerProcess) -> None:
    assert ask(server, "quick").status == 200
    assert server.post("/models/load", {"model": "slow"}).status == 200
    answers, slowest = 0, 0.0
    while status(server, "slow") == "loading":
        start = time.perf_counter()
        assert server.get("/health").status == 200
        slowest = max(slowest, time.perf_counter() - start)
        assert ask(server, "quick").status == 200
        answers += 1
    assert answers > 5
    assert slowest < 1
    assert status(server, "slow") == "loaded"


def test_the_end_of_the_server_does_not_wait_for_a_load(server: ServerProcess) -> None:
    server.post("/models/unload", {"model": "slow"})
    assert wait_until(lambda: status(server, "slow") == "unloaded", 10)
    server.post("/models/load", {"model": "slow"})
    assert wait_until(lambda: status(server, "slow") == "loading", 10)
    start = time.monotonic()
    server.process.terminate()
    server.process.wait(10)
    assert time.monotonic() - start < 3.5
