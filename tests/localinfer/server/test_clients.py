"""Those who ask: they leave, wait in line, or should not be here at all."""

import contextlib
import json
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from served import Served, events_of, until
from tiny import tiny_llama

TEXT = "/v1/completions"
ENDLESS = {"prompt": "Hello", "max_tokens": 16000, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "Hello", "max_tokens": 4}


def is_idle(server: Served) -> bool:
    [slot] = server.get("/slots").body
    return not slot["is_processing"] and slot["waiting"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_frees_the_slot_within_a_second(server: Served, stream: bool) -> None:
    connection = server.connection()
    connection.connect()
    connection.request("POST", TEXT, json.dumps(ENDLESS | {"stream": stream}))
    assert until(lambda: not is_idle(server), 5)
    connection.close()
    assert until(lambda: is_idle(server), 1)
    assert server.post(TEXT, SHORT).status == 200


def test_who_leaves_while_a_prompt_is_read(server: Served) -> None:
    connection = server.connection()
    connection.request("POST", TEXT, json.dumps({"prompt": [5, 6, 7] * 5000, "max_tokens": 1}))
    assert until(lambda: not is_idle(server), 5)
    connection.close()
    assert until(lambda: is_idle(server), 1)


def test_the_line_has_an_end(server: Served) -> None:
    """One is answered, two wait: the fourth is sent away, and who waits gets an answer."""
    first = server.open(TEXT, ENDLESS)
    answers: list[int] = []
    waiting = [threading.Thread(target=lambda: answers.append(server.post(TEXT, SHORT).status)) for _ in range(2)]
    for each in waiting:
        each.start()
    assert until(lambda: server.get("/slots").body[0]["waiting"] == 2, 5)
    status, refusal, headers = server.post(TEXT, SHORT)
    assert (status, refusal["error"]["code"]) == (503, "busy")
    assert headers["retry-after"] == "1"
    first.close()
    for each in waiting:
        each.join(30)
    assert answers == [200, 200]


def test_who_leaves_the_line_is_forgotten(server: Served) -> None:
    with contextlib.closing(server.open(TEXT, ENDLESS)):
        waiting = server.connection()
        waiting.request("POST", TEXT, json.dumps(SHORT))
        assert until(lambda: server.get("/slots").body[0]["waiting"] == 1, 5)
        waiting.close()
        assert until(lambda: server.get("/slots").body[0]["waiting"] == 0, 1)
    assert until(lambda: is_idle(server), 1)


def test_answers_have_a_time(tiny: Path) -> None:
    with Served(tiny, "--timeout", "1") as server:
        began = time.monotonic()
        answer = server.post(TEXT, ENDLESS | {"stream": False})
        assert time.monotonic() - began < 5
        assert answer.body["choices"][0]["finish_reason"] == "length"
        assert 0 < answer.body["usage"]["completion_tokens"] < 16000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_answers_finish(tiny: Path, number: int) -> None:
    with Served(tiny) as server:
        answer = server.open(TEXT, ENDLESS | {"max_tokens": 1500})
        answer.readline()
        server.process.send_signal(number)
        assert until(lambda: not server.is_open(), 5)
        last = list(events_of(answer))[-1]
        assert last["timings"]["predicted_n"] == 1500
        assert server.process.wait(10) == 0
    assert [line for line in server.lines if "error" in line.lower()] == []


def test_a_second_signal_does_not(tiny: Path) -> None:
    with Served(tiny) as server, contextlib.closing(server.open(TEXT, ENDLESS)) as answer:
        answer.readline()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) is not None
    assert [line for line in server.lines if "listening" not in line] == []


class TestGate:
    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:8080", "LOCALHOST:1", "a.localhost"])
    def test_names_of_this_machine(self, server: Served, host: str) -> None:
        assert server.get("/v1/models", host=host).status == 200

    @pytest.mark.parametrize("host", ["evil.example", "attacker:8080", "localhost.evil.com", "127.0.0.1.nip.io", "a b"])
    def test_names_that_were_made_to_point_here(self, server: Served, host: str) -> None:
        assert server.get("/v1/models", host=host).status == 403

    @pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:9"])
    def test_pages_of_this_machine(self, server: Served, origin: str) -> None:
        answer = server.get("/v1/models", origin=origin)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == origin
        before = server.ask("OPTIONS", "/v1/models", origin=origin, access_control_request_method="POST")
        assert before.status == 204

    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "http://localhost.evil.com", "http://notlocalhost", "null", "file://", "x",
                   "http://[", "http://[::1", "https://[x]", "http://a]b"],
    )  # fmt: skip
    def test_pages_from_elsewhere(self, server: Served, origin: str) -> None:
        for method, path in ("POST", TEXT), ("GET", "/v1/models"), ("OPTIONS", TEXT):
            answer = server.ask(method, path, SHORT, origin=origin)
            assert answer.status == 403
            assert "access-control-allow-origin" not in answer.headers

    def test_names_and_pages_that_were_allowed(self, tiny: Path) -> None:
        allowed = ["--allow-host", "box.lan", "--allow-origin", "https://chat.example"]
        with Served(tiny, *allowed) as server:
            assert server.get("/v1/models", host="box.lan:80", origin="https://chat.example").status == 200
            assert server.get("/v1/models", origin="https://other.example").status == 403

    def test_keys(self, tiny: Path) -> None:
        with Served(tiny, "--api-key", "secret", "--api-key", "other") as server:
            assert server.get("/health").status == 200
            assert server.get("/v1/models").status == 401
            assert server.get("/v1/models", authorization="Bearer wrong").status == 401
            assert server.get("/v1/models", authorization="Bearer secret").status == 200
            assert server.get("/v1/models", x_api_key="other").status == 200
            assert "secret" not in "".join(server.lines)

    def test_a_key_that_is_not_ascii(self, tiny: Path) -> None:
        with Served(tiny, "--api-key", "schlüssel") as server:
            as_sent = "schlüssel".encode().decode("latin-1")  # http.client writes headers so
            assert server.get("/v1/models", authorization=f"Bearer {as_sent}").status == 200
            assert server.get("/v1/models", authorization="Bearer schlussel").status == 401


def test_half_a_request_holds_nothing_up(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert server.post(TEXT, SHORT).status == 200


def code_in(server: Served) -> int:
    """Stretches of memory with machine code that is in no file; 0 where the system does not tell."""
    maps = Path(f"/proc/{server.process.pid}/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return sum(line.split()[1] == "r-xp" and len(line.split()) == 5 for line in lines)


def test_several_models_one_at_a_time(tiny: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", seed=1)
    with Served(tiny, other) as server:
        assert [each["id"] for each in server.get("/v1/models").body["data"]] == ["tiny", "other"]
        for name in ("tiny", "other", "tiny"):
            answer = server.post(TEXT, SHORT | {"model": name}).body
            assert answer["model"] == name
            loaded = [each["id"] for each in server.get("/v1/models").body["data"] if "meta" in each]
            assert loaded == [name]
        code = code_in(server)
        for name in 3 * ("other", "tiny"):
            assert server.post(TEXT, SHORT | {"model": name}).status == 200
        assert code_in(server) - code < 6, "each time there was some more"
        status, answer, _ = server.post(TEXT, SHORT | {"model": "../tiny"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
