"""Clients that disconnect, wait in the queue, or are not authorized."""

import contextlib
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from server_process import ServerProcess, parse_events, wait_until
from tiny import tiny_llama

from localinfer.server.anthropic.errors import error_body, error_status
from localinfer.server.http.streaming import SHUTDOWN_ERROR

TEXT = "/v1/completions"
ENDLESS = {"prompt": "Hello", "max_tokens": 16000, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "Hello", "max_tokens": 4}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": True}


def is_idle(server: ServerProcess) -> bool:
    [slot] = server.get("/slots").body
    return not slot["is_processing"] and slot["waiting"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_frees_the_slot_within_a_second(server: ServerProcess, stream: bool) -> None:
    connection = server.connection()
    connection.connect()
    connection.request("POST", TEXT, json.dumps(ENDLESS | {"stream": stream}))
    assert wait_until(lambda: not is_idle(server), 5)
    connection.close()
    assert wait_until(lambda: is_idle(server), 1)
    assert server.post(TEXT, SHORT).status == 200


def test_disconnect_during_prefill(server: ServerProcess) -> None:
    connection = server.connection()
    connection.request("POST", TEXT, json.dumps({"prompt": [5, 6, 7] * 5000, "max_tokens": 1}))
    assert wait_until(lambda: not is_idle(server), 5)
    connection.close()
    assert wait_until(lambda: is_idle(server), 1)


def test_disconnect_during_prefill_among_parallel_slots(tmp_path: Path) -> None:
    """The next batch begins without the request, although it begins before the request's thread is woken."""
    model = tiny_llama(tmp_path / "deep.gguf", n_ctx=16384, n_layer=8)
    with ServerProcess(model, "--parallel", "2") as server:
        connection = server.connection()
        connection.request("POST", TEXT, json.dumps({"prompt": [5, 6, 7] * 5000, "max_tokens": 1}))
        assert wait_until(lambda: server.get("/slots").body[0].get("n_past", 0) > 0, 10)
        connection.close()
        assert wait_until(lambda: not server.get("/slots").body[0]["is_processing"], 2)


def test_queue_is_bounded(server: ServerProcess) -> None:
    """One request runs and two wait: the fourth is rejected, and the waiting ones are completed."""
    first = server.open(TEXT, ENDLESS)
    answers: list[int] = []
    waiting = [threading.Thread(target=lambda: answers.append(server.post(TEXT, SHORT).status)) for _ in range(2)]
    for each in waiting:
        each.start()
    assert wait_until(lambda: server.get("/slots").body[0]["waiting"] == 2, 5)
    status, refusal, headers = server.post(TEXT, SHORT)
    assert (status, refusal["error"]["code"]) == (503, "busy")
    assert headers["retry-after"] == "1"
    first.close()
    for each in waiting:
        each.join(30)
    assert answers == [200, 200]


def test_disconnect_while_waiting(server: ServerProcess) -> None:
    with contextlib.closing(server.open(TEXT, ENDLESS)):
        waiting = server.connection()
        waiting.request("POST", TEXT, json.dumps(SHORT))
        assert wait_until(lambda: server.get("/slots").body[0]["waiting"] == 1, 5)
        waiting.close()
        assert wait_until(lambda: server.get("/slots").body[0]["waiting"] == 0, 1)
    assert wait_until(lambda: is_idle(server), 1)


def test_timeout_ends_a_response(tiny: Path) -> None:
    with ServerProcess(tiny, "--timeout", "1") as server:
        start = time.monotonic()
        answer = server.post(TEXT, ENDLESS | {"stream": False})
        assert time.monotonic() - start < 5
        assert answer.body["choices"][0]["finish_reason"] == "length"
        assert 0 < answer.body["usage"]["completion_tokens"] < 16000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_lets_responses_finish(tiny: Path, number: int) -> None:
    with ServerProcess(tiny) as server:
        answer = server.open(TEXT, ENDLESS | {"max_tokens": 200})
        answer.readline()
        server.process.send_signal(number)
        assert wait_until(lambda: not server.is_open(), 5)
        last = list(parse_events(answer))[-1]
        assert last["timings"]["predicted_n"] == 200
        assert server.process.wait(10) == 0
    assert [line for line in server.lines if "error" in line.lower()] == []


def test_signal_ends_long_responses_with_an_error(tiny: Path) -> None:
    """Also those of requests that wait for a slot. The log has no line about it."""
    with ServerProcess(tiny, "--parallel", "1") as server, ThreadPoolExecutor(3) as clients:
        stream = server.open(TEXT, ENDLESS)
        stream.readline()
        waiting = [clients.submit(server.post, path, body) for path, body in (
            (TEXT, ENDLESS | {"stream": False}), ("/v1/messages", CHAT), ("/api/chat", CHAT))]  # fmt: skip
        assert wait_until(lambda: server.get("/slots").body[0]["waiting"] == 3, 5)
        server.process.send_signal(signal.SIGTERM)
        assert list(parse_events(stream))[-1]["error"]["message"] == SHUTDOWN_ERROR.message
        answers = [each.result() for each in waiting]
        assert server.process.wait(10) == 0
    assert [answer.status for answer in answers] == [503, error_status(SHUTDOWN_ERROR), 503]
    errors = [SHUTDOWN_ERROR.error, error_body(SHUTDOWN_ERROR)["error"], SHUTDOWN_ERROR.message]
    assert [answer.body["error"] for answer in answers] == errors
    assert [line for line in server.lines if "listening" not in line] == []


def test_second_signal_aborts_responses(tiny: Path) -> None:
    with ServerProcess(tiny) as server, contextlib.closing(server.open(TEXT, ENDLESS)) as answer:
        answer.readline()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) is not None
    assert [line for line in server.lines if "listening" not in line] == []


class TestAuth:
    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:8080", "LOCALHOST:1", "a.localhost"])
    def test_local_host_names(self, server: ServerProcess, host: str) -> None:
        assert server.get("/v1/models", host=host).status == 200

    @pytest.mark.parametrize("host", ["evil.example", "attacker:8080", "localhost.evil.com", "127.0.0.1.nip.io", "a b"])
    def test_dns_rebinding(self, server: ServerProcess, host: str) -> None:
        assert server.get("/v1/models", host=host).status == 403

    @pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:9"])
    def test_local_origins(self, server: ServerProcess, origin: str) -> None:
        answer = server.get("/v1/models", origin=origin)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == origin
        before = server.request("OPTIONS", "/v1/models", origin=origin, access_control_request_method="POST")
        assert before.status == 200
        assert before.headers["access-control-allow-origin"] == origin

    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "http://localhost.evil.com", "http://notlocalhost", "null", "x",
                   "http://[", "http://[::1", "https://[x]", "http://a]b"],
    )  # fmt: skip
    def test_foreign_origins(self, server: ServerProcess, origin: str) -> None:
        for method, path, status in ("POST", TEXT, 403), ("GET", "/v1/models", 403), ("OPTIONS", TEXT, 200):
            answer = server.request(method, path, SHORT, origin=origin)
            assert answer.status == status
            assert "access-control-allow-origin" not in answer.headers

    @pytest.mark.parametrize("origin", ["app://obsidian.md", "tauri://localhost", "vscode-webview://abc", "file://"])
    def test_origins_of_programs(self, server: ServerProcess, origin: str) -> None:
        answer = server.get("/v1/models", origin=origin)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)

    def test_allowed_hosts_and_origins(self, tiny: Path) -> None:
        allowed = ["--allow-host", "box.lan", "--allow-origin", "https://chat.example"]
        with ServerProcess(tiny, *allowed) as server:
            assert server.get("/v1/models", host="box.lan:80", origin="https://chat.example").status == 200
            assert server.get("/v1/models", origin="https://other.example").status == 403

    def test_api_keys(self, tiny: Path) -> None:
        with ServerProcess(tiny, "--api-key", "secret", "--api-key", "other") as server:
            assert server.get("/health").status == 200
            assert server.get("/v1/models").status == 401
            assert server.get("/v1/models", authorization="Bearer wrong").status == 401
            assert server.get("/v1/models", authorization="Bearer secret").status == 200
            assert server.get("/v1/models", x_api_key="other").status == 200
            assert "secret" not in "".join(server.lines)

    def test_non_ascii_api_key(self, tiny: Path) -> None:
        with ServerProcess(tiny, "--api-key", "schlüssel") as server:
            as_sent = "schlüssel".encode().decode("latin-1")  # as http.client encodes headers
            assert server.get("/v1/models", authorization=f"Bearer {as_sent}").status == 200
            assert server.get("/v1/models", authorization="Bearer schlussel").status == 401


def test_incomplete_request_does_not_block_others(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert server.post(TEXT, SHORT).status == 200


def n_code_mappings(server: ServerProcess) -> int:
    """Return the number of anonymous executable memory mappings; 0 if the system does not list them."""
    maps = Path(f"/proc/{server.process.pid}/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return sum(line.split()[1] == "r-xp" and len(line.split()) == 5 for line in lines)


def test_one_loaded_model_at_a_time(tiny: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", seed=1)
    with ServerProcess(tiny, other) as server:
        assert [each["id"] for each in server.get("/v1/models").body["data"]] == ["tiny", "other"]
        for name in ("tiny", "other", "tiny"):
            answer = server.post(TEXT, SHORT | {"model": name}).body
            assert answer["model"] == name
            loaded = [each["id"] for each in server.get("/v1/models").body["data"] if "meta" in each]
            assert loaded == [name]
        code = n_code_mappings(server)
        for name in 3 * ("other", "tiny"):
            assert server.post(TEXT, SHORT | {"model": name}).status == 200
        assert n_code_mappings(server) - code < 6, "machine code accumulates with each load"
        status, answer, _ = server.post(TEXT, SHORT | {"model": "../tiny"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
