"""A server with a directory of models: they are loaded, unloaded, listed and evicted as requests need them."""

import contextlib
import http.client
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from documented_files import split_model
from server_process import ServerProcess, parse_events, wait_until
from tiny import tiny_llama

from cli.__main__ import run

TEXT = "/v1/completions"
REQUEST = {"prompt": "Hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
LONG = REQUEST | {"max_tokens": 8000, "stream": True}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models, one of them split in a folder beside a projector, and a damaged file."""
    folder = tmp_path_factory.mktemp("originals")
    for seed, name in enumerate(("one", "two")):
        tiny_llama(folder / f"{name}.gguf", seed=seed, n_ctx=8192)
    (folder / "three").mkdir()
    split_model(folder / "three" / "parts-00001-of-00003.gguf")
    (folder / "three" / "mmproj-F16.gguf").write_bytes(b"GGUF")
    (folder / "mmproj-one.gguf").write_bytes(b"GGUF")
    (folder / "damaged.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    return folder


@pytest.fixture(scope="module")
def directory(originals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(originals, tmp_path_factory.mktemp("served") / "models"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    with ServerProcess(directory, "--models-max", 1, "--parallel", 2) as served:
        yield served


def models(server: ServerProcess, path: str = "/models") -> dict[str, Any]:
    return {each["id"]: each for each in server.get(path).body["data"]}


def status(server: ServerProcess, name: str) -> str:
    return str(models(server)[name]["status"]["value"])


def becomes(server: ServerProcess, name: str, value: str) -> bool:
    return wait_until(lambda: status(server, name) == value, 60)


def ask(server: ServerProcess, name: str, path: str = TEXT) -> Any:
    return server.post(path, REQUEST | {"model": name})


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def test_every_list_has_the_same_models(server: ServerProcess) -> None:
    names = {"one", "two", "three", "damaged"}
    assert models(server).keys() == models(server, "/v1/models").keys() == names
    assert {each["name"] for each in server.get("/api/tags").body["models"]} == names - {"damaged"}
    entry = models(server)["one"]
    assert (entry["source"], entry["can_remove"], entry["object"]) == ("models_dir", False, "model")
    assert entry["status"]["args"][:2] == ["localinfer", "serve"]
    assert entry["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}


def test_a_request_loads_its_model_and_unloads_the_one_before(server: ServerProcess, capsys: Any) -> None:
    for name in ("one", "three", "two"):
        assert ask(server, name).body["model"] == name
        assert [each for each in models(server) if status(server, each) == "loaded"] == [name]
        assert [each["name"] for each in server.get("/api/ps").body["models"]] == [name]
    assert run(["ps", "--port", str(server.port)]) == 0
    assert "two" in capsys.readouterr().out
    assert run(["stop", "two", "--port", str(server.port)]) == 0
    assert status(server, "two") == "unloaded"
    assert server.get("/api/ps").body == {"models": []}


def test_loading_and_unloading(server: ServerProcess) -> None:
    assert server.post("/models/load", {"model": "one"}).body == {"success": True}
    assert becomes(server, "one", "loaded")
    answers = [
        server.post("/models/load", {"model": "one"}),
        server.post("/models/unload", {"model": "two"}),
        server.post("/models/load", {"model": "none"}),
        server.post("/models/unload", {"model": "none"}),
    ]
    assert [(each.status, each.body["error"]["message"]) for each in answers] == [
        (400, "model is already running"), (400, "model is not running"),
        (404, "model is not found"), (400, "model is not found"),
    ]  # fmt: skip
    assert server.post("/models/unload", {"model": "one"}).body == {"success": True}
    assert becomes(server, "one", "unloaded")
    assert server.post("/models/load", {}).status == 400


def test_unknown_models(server: ServerProcess) -> None:
    answer = ask(server, "none")
    assert (answer.status, answer.body["error"]["code"]) == (404, "model_not_found")
    assert server.get("/props?model=none").status == 404


def test_a_model_that_cannot_be_loaded_says_why(server: ServerProcess, directory: Path) -> None:
    answer = ask(server, "damaged")
    assert answer.status == 500
    shown = models(server)["damaged"]["status"]
    assert (shown["value"], shown["failed"], shown["exit_code"]) == ("unloaded", True, 1)
    assert shown["error"] == answer.body["error"]["message"]
    assert str(directory) not in shown["error"]
    server.post("/models/load", {"model": "damaged"})
    assert wait_until(lambda: status(server, "damaged") == "unloaded", 60)
    shutil.copyfile(directory / "one.gguf", directory / "damaged.gguf")  # and can be retried
    assert ask(server, "damaged").status == 200
    assert "failed" not in models(server)["damaged"]["status"]


def test_files_come_and_go(server: ServerProcess, directory: Path) -> None:
    shutil.copyfile(directory / "two.gguf", directory / "new.gguf")
    assert ask(server, "new").status == 200
    (directory / "new.gguf").unlink()
    assert wait_until(lambda: "new" not in models(server), 5)
    assert wait_until(lambda: server.get("/api/ps").body == {"models": []}, 30)
    assert ask(server, "new").status == 404


def test_a_replaced_file_is_loaded_again(server: ServerProcess, originals: Path, directory: Path) -> None:
    text = {name: ask(server, name).body["choices"][0]["text"] for name in ("one", "two")}
    assert text["one"] != text["two"]
    shutil.copyfile(originals / "one.gguf", directory / "other")
    (directory / "other").replace(directory / "two.gguf")
    assert ask(server, "two").body["choices"][0]["text"] == text["one"]
    shutil.copyfile(originals / "two.gguf", directory / "other")
    (directory / "other").replace(directory / "two.gguf")


def test_an_answer_ends_before_its_model_is_unloaded(server: ServerProcess) -> None:
    with server.open(TEXT, LONG | {"model": "one"}) as running:
        running.readline()
        thread, other = in_thread(lambda: ask(server, "two"))
        later, again = in_thread(lambda: ask(server, "one"))
        assert server.post("/models/unload", {"model": "one"}).status == 200
        events = list(parse_events(running))
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    for each in (thread, later):
        each.join(60)
    assert [other[0].status, again[0].status] == [200, 200]


def test_a_client_that_leaves_costs_no_model(server: ServerProcess) -> None:
    assert ask(server, "one").status == 200
    with server.open(TEXT, LONG | {"model": "one"}) as running:
        running.readline()
        connection = server.connection()
        connection.request("POST", TEXT, json.dumps(REQUEST | {"model": "two"}))
        time.sleep(0.3)
        connection.close()
        assert wait_until(lambda: status(server, "two") == "unloaded", 10)
        assert list(parse_events(running))[-1]["choices"][0]["finish_reason"] == "length"
    time.sleep(0.3)
    assert [status(server, name) for name in ("one", "two")] == ["loaded", "unloaded"]


def test_requests_for_the_same_model_load_it_once(server: ServerProcess) -> None:
    ask(server, "two")
    with listening(server) as events:
        requests = [in_thread(lambda: ask(server, "three")) for _ in range(4)]
        for thread, _ in requests:
            thread.join(60)
        assert [results[0].status for _, results in requests] == [200] * 4
    loads = [each for each in events if each["model"] == "three" and each["data"] == {"status": "loaded"}]
    assert len(loads) == 1
    assert {"model": "two", "event": "model_status", "data": {"status": "unloaded", "exit_code": 0}} in events
    assert any(each["data"].get("progress") for each in events if each["model"] == "three")


class listening:
    """Collects the events of /models/sse in the with block."""

    def __init__(self, server: ServerProcess) -> None:
        self.connection, self.events = server.connection(), list[Any]()
        self.connection.request("GET", "/models/sse")
        self.thread: threading.Thread | None = None

    def __enter__(self) -> list[Any]:
        answer = self.connection.getresponse()
        self.thread = threading.Thread(target=self.read, args=[answer], daemon=True)
        self.thread.start()
        return self.events

    def read(self, answer: http.client.HTTPResponse) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            self.events.extend(parse_events(answer))

    def __exit__(self, *_: object) -> None:
        time.sleep(0.3)
        if self.connection.sock:
            self.connection.sock.close()


def test_other_requests_are_answered_while_a_model_loads(server: ServerProcess) -> None:
    """The limit is generous, because tests run beside each other."""
    slowest, done = 0.0, threading.Event()

    def load_often() -> None:
        for _ in range(3):
            for name in ("one", "two", "three"):
                ask(server, name)
        done.set()

    in_thread(load_often)
    while not done.is_set():
        start = time.perf_counter()
        assert server.get("/health").status == 200
        slowest = max(slowest, time.perf_counter() - start)
    assert slowest < 1


def test_query_parameters(server: ServerProcess) -> None:
    ask(server, "one")
    answer = server.post(f"{TEXT}?autoload=false", REQUEST | {"model": "two"})
    assert (answer.status, answer.body["error"]["message"]) == (400, "model is not loaded")
    assert server.post(f"{TEXT}?autoload=false", REQUEST | {"model": "one"}).status == 200
    assert server.post(f"{TEXT}?model=two", REQUEST).body["model"] == "two"
    assert server.get("/props?model=two").body["model_alias"] == "two"
    assert server.get("/props").body["role"] == "router"
