"""Concurrent requests: each response equals that of the request alone."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, wait_until

TEXT = "/v1/completions"
REQUEST = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.7, "seed": 3, "logprobs": 1}
PROMPTS = [f"{'Hello the ' * (5 * number)}{number}" for number in range(8)]


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny, "--parallel", "4", "--ctx-size", "1024") as served:
        yield served


def answer(server: ServerProcess, prompt: str) -> Any:
    actual = server.post(TEXT, REQUEST | {"prompt": prompt})
    assert actual.status == 200
    return actual.body["choices"]


def test_concurrent_equals_sequential(server: ServerProcess) -> None:
    alone = [answer(server, prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        assert list(clients.map(lambda prompt: answer(server, prompt), PROMPTS * 2)) == alone * 2
    assert server.get("/props").body["total_slots"] == 4


def test_disconnect_does_not_affect_others(server: ServerProcess) -> None:
    endless = REQUEST | {"prompt": "Hello", "max_tokens": 900, "stream": True}
    with ThreadPoolExecutor(4) as clients:
        leaving = server.open(TEXT, endless)
        leaving.readline()
        staying = [clients.submit(answer, server, prompt) for prompt in PROMPTS[:2]]
        assert wait_until(lambda: any(slot.get("n_past", 0) > 0 for slot in server.get("/slots").body), 5)
        leaving.close()
        assert [each.result() for each in staying] == [answer(server, prompt) for prompt in PROMPTS[:2]]
    assert wait_until(lambda: not any(slot["is_processing"] for slot in server.get("/slots").body), 1)


def test_common_prefix_is_evaluated_once(server: ServerProcess) -> None:
    """Concurrent requests wait for the one that evaluates the prefix, and share its pages."""
    common, n_cached = [7, 8, 9, 10] * 150, list[int]()

    def ask(number: int) -> None:
        body = server.post(TEXT, {"prompt": [*common, 20 + number, 11], "max_tokens": 1}).body
        n_cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])

    threads = [threading.Thread(target=ask, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(n_cached) == [0, 600, 600, 600]


class TestChoices:
    CHOICES_REQUEST = REQUEST | {"prompt": [7, 8, 9, 10] * 60, "n": 6}

    def test_concurrent_equals_sequential(self, server: ServerProcess) -> None:
        """More choices than slots; with a seed, choice k uses seed + k."""
        body = server.post(TEXT, self.CHOICES_REQUEST).body
        alone = [server.post(TEXT, self.CHOICES_REQUEST | {"n": 1, "seed": 3 + k}).body["choices"][0] for k in range(6)]
        assert body["choices"] == [each | {"index": k} for k, each in enumerate(alone)]
        assert len({each["text"] for each in alone}) == 6
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (240, 240)

    def test_streams_are_interleaved(self, server: ServerProcess) -> None:
        events = server.events(TEXT, self.CHOICES_REQUEST | {"stream": True})
        whole = server.post(TEXT, self.CHOICES_REQUEST).body["choices"]
        order = [event["choices"][0]["index"] for event in events]
        assert order != sorted(order)
        for number, choice in enumerate(whole):
            chunks = [event["choices"][0] for event in events if event["choices"][0]["index"] == number]
            assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
            assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["length"]

    def test_chat(self, server: ServerProcess) -> None:
        request = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "seed": 1, "n": 3}
        streamed = request | {"stream": True, "stream_options": {"include_usage": True}}
        whole = server.post("/v1/chat/completions", request).body
        events = server.events("/v1/chat/completions", streamed)
        for number, choice in enumerate(whole["choices"]):
            deltas = [event["choices"][0] for event in events if event["choices"]]
            text = "".join(each["delta"].get("content") or "" for each in deltas if each["index"] == number)
            assert (number, text) == (choice["index"], choice["message"]["content"])
        assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]

    def test_waiting_requests_go_first(self, server: ServerProcess) -> None:
        """Further choices take no slot that a request waits for, and a disconnect frees all slots."""
        endless = self.CHOICES_REQUEST | {"n": 100, "max_tokens": 700, "stream": True}
        leaving = server.open(TEXT, endless)
        leaving.readline()
        assert wait_until(lambda: all(slot["is_processing"] for slot in server.get("/slots").body), 5)
        assert server.post(TEXT, REQUEST | {"prompt": "Hello"}).status == 200
        leaving.close()
        assert wait_until(lambda: not any(slot["is_processing"] for slot in server.get("/slots").body), 10)

    def test_invalid_prompt_is_rejected(self, server: ServerProcess) -> None:
        assert server.post(TEXT, self.CHOICES_REQUEST | {"prompt": [5] * 2000}).status == 400
