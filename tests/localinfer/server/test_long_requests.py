"""Requests with megabytes of text: other requests go on meanwhile, and the work ends with the request."""

import http.client
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, wait_until

TEXT = "Hello the <|im_end|> " * 200_000  # 4.2 million characters
MESSAGES = [{"role": ("user", "assistant")[n % 2], "content": f"Hello {n}"} for n in range(20_001)]
WATCHED_SECONDS = 3
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("/v1/completions", {"prompt": TEXT[: 4 << 20]}),
    "messages": ("/v1/chat/completions", {"messages": MESSAGES}),
    "template": ("/apply-template", {"messages": MESSAGES}),
    "tokenize": ("/tokenize", {"content": TEXT, "with_pieces": True}),
    "detokenize": ("/detokenize", {"tokens": [5] * (1 << 20)}),
}


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny, "--parallel", "1") as served:
        yield served


def send(server: ServerProcess, name: str) -> http.client.HTTPConnection:
    connection = server.connection()
    path, body = REQUESTS[name]
    connection.request("POST", path, json.dumps(body))
    return connection


def is_idle(server: ServerProcess) -> bool:
    return not server.get("/slots").body[0]["is_processing"]


@pytest.mark.parametrize("name", REQUESTS)
def test_other_requests_go_on(server: ServerProcess, name: str) -> None:
    connection = send(server, name)
    seconds = []
    end = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < end:
        start = time.monotonic()
        server.get("/health")
        seconds.append(time.monotonic() - start)
        time.sleep(0.02)
    connection.close()
    assert max(seconds) < 1  # 0.1 s when nothing else runs
    assert wait_until(lambda: is_idle(server), 30)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template"])
def test_messages_that_are_too_long(server: ServerProcess, path: str) -> None:
    content = [{"type": "text", "text": TEXT[: 1 << 20]}, {"type": "text", "text": TEXT[1 << 20 :]}]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "x"}]
    refused = server.post(path, {"messages": messages})
    assert refused.status == 400
    assert refused.body["error"]["message"] == "messages: 4200001 characters (limit 4194304)"


@pytest.mark.parametrize("name", ["text", "messages", "template"])
def test_work_ends_when_the_client_leaves(server: ServerProcess, name: str) -> None:
    connection = send(server, name)
    assert wait_until(lambda: not is_idle(server), 30)
    time.sleep(0.3)
    assert not is_idle(server)
    connection.close()
    start = time.monotonic()
    assert wait_until(lambda: is_idle(server), 30)
    assert time.monotonic() - start < 8  # 1 s when nothing else runs


@pytest.mark.parametrize("name", [name for name in REQUESTS if name != "detokenize"])  # that needs less than 0.1 s
def test_work_ends_after_the_timeout(tiny: Path, name: str) -> None:
    with ServerProcess(tiny, "--parallel", "1", "--timeout", "0.2") as server:  # less than the work needs
        path, body = REQUESTS[name]
        start = time.monotonic()
        response = server.post(path, body)
        assert time.monotonic() - start < 15  # 2 s when nothing else runs
        assert (response.status, response.body["error"]["code"]) == (503, "timeout")
        assert server.post("/tokenize", {"content": "Hello"}).status == 200


@pytest.mark.parametrize("name", REQUESTS)
def test_signal_ends_the_work(tiny: Path, name: str) -> None:
    with ServerProcess(tiny, "--parallel", "1") as server:
        connection = send(server, name)
        time.sleep(1)
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        assert time.monotonic() - start < 9  # 3.5 s when nothing else runs
        connection.close()
