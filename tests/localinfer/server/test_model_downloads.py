"""`POST /models` and `DELETE /models`, with a hub on loopback."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback_hub import Hub
from server_process import ServerProcess, parse_events, wait_until
from tiny import tiny_llama

NAME = "owner/repo:Q8_0"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub() as hub:
        hub.repos["owner/repo"] = {"tiny-Q8_0.gguf": tiny_llama(tmp_path / "tiny.gguf").read_bytes()}
        yield hub


@pytest.fixture
def server(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    for name, value in (
        ("HF_ENDPOINT", hub.url), ("HF_HUB_CACHE", str(tmp_path / "hub")), ("NO_PROXY", "*"),
        ("LOCALINFER_CACHE_DIR", str(tmp_path / "cache")),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    with ServerProcess() as served:
        yield served


def ids(server: ServerProcess, path: str = "/models") -> list[str]:
    return [each["id"] for each in server.get(path).body["data"]]


def listen(server: ServerProcess) -> list[Any]:
    events: list[Any] = []
    connection = server.connection()
    connection.request("GET", "/models/sse")
    answer = connection.getresponse()
    threading.Thread(target=lambda: events.extend(parse_events(answer)), daemon=True).start()
    return events


def seen(events: list[Any], name: str) -> bool:
    return any((each["event"], each["model"]) == (name, NAME) for each in events)


def test_download_and_removal(server: ServerProcess, hub: Hub) -> None:
    events = listen(server)
    assert server.post("/models", {"model": NAME}).body == {"success": True}
    assert wait_until(lambda: seen(events, "download_finished"), 30)
    assert seen(events, "download_progress")
    assert ids(server) == [NAME]
    assert ids(server, "/v1/models") == [f"hf:{NAME}"]
    assert server.get("/models").body["data"][0]["can_remove"] is True
    again = server.post("/models", {"model": NAME})
    assert (again.status, again.body["error"]["message"]) == (400, f"model '{NAME}' already exists")
    assert server.request("DELETE", f"/models?model={NAME}").body == {"success": True}
    assert ids(server) == []
    assert wait_until(lambda: seen(events, "model_remove"), 10)
    assert server.request("DELETE", f"/models?model={NAME}").status == 404
    assert server.request("DELETE", "/models").status == 400


def test_a_download_is_cancelled(server: ServerProcess, hub: Hub, tmp_path: Path) -> None:
    hub.rate = 0.05
    events = listen(server)
    assert server.post("/models", {"model": NAME}).status == 200
    assert wait_until(lambda: seen(events, "download_progress"), 30)
    [model] = server.get("/models").body["data"]
    assert model["status"]["value"] == "downloading"
    assert model["status"]["progress"][f"hf:{NAME}"]["total"] == (tmp_path / "tiny.gguf").stat().st_size
    assert server.post("/models/unload", {"model": NAME}).body == {"success": True}
    assert wait_until(lambda: seen(events, "download_failed"), 10)
    time.sleep(0.2)
    assert ids(server) == []


@pytest.mark.parametrize(
    ("name", "status"),
    [("owner/none:Q8_0", 400), ("nonsense", 404), ("https://example.com/a.gguf", 400), ("", 400)],
)
def test_refused(server: ServerProcess, name: str, status: int) -> None:
    answer = server.post("/models", {"model": name})
    assert answer.status == status
    assert answer.body["error"]["message"]
