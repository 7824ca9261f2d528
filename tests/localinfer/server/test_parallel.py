"""Several requests at a time: each gets the answer that it gets alone."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from served import Served, until

TEXT = "/v1/completions"
ASKED = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.7, "seed": 3, "logprobs": 1}
PROMPTS = [f"{'Hello the ' * (5 * number)}{number}" for number in range(8)]


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Served]:
    with Served(tiny, "--parallel", "4", "--ctx-size", "1024") as served:
        yield served


def answer(server: Served, prompt: str) -> Any:
    found = server.post(TEXT, ASKED | {"prompt": prompt})
    assert found.status == 200
    return found.body["choices"]


def test_answers_are_those_of_one_at_a_time(server: Served) -> None:
    alone = [answer(server, prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        assert list(clients.map(lambda prompt: answer(server, prompt), PROMPTS * 2)) == alone * 2
    assert server.get("/props").body["total_slots"] == 4


def test_who_leaves_is_in_nobodys_way(server: Served) -> None:
    endless = ASKED | {"prompt": "Hello", "max_tokens": 900, "stream": True}
    with ThreadPoolExecutor(4) as clients:
        leaving = server.open(TEXT, endless)
        leaving.readline()
        staying = [clients.submit(answer, server, prompt) for prompt in PROMPTS[:2]]
        assert until(lambda: any(slot.get("n_past", 0) > 0 for slot in server.get("/slots").body), 5)
        leaving.close()
        assert [each.result() for each in staying] == [answer(server, prompt) for prompt in PROMPTS[:2]]
    assert until(lambda: not any(slot["is_processing"] for slot in server.get("/slots").body), 1)


def test_a_prefix_is_read_once(server: Served) -> None:
    """Also by those who ask at the same time as the one who reads it."""
    common, told = [7, 8, 9, 10] * 150, list[int]()

    def ask(number: int) -> None:
        body = server.post(TEXT, {"prompt": [*common, 20 + number, 11], "max_tokens": 1}).body
        told.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])

    threads = [threading.Thread(target=ask, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [0, 600, 600, 600]


class TestChoices:
    ASKED = ASKED | {"prompt": [7, 8, 9, 10] * 60, "n": 6}

    def test_are_those_of_one_at_a_time(self, server: Served) -> None:
        """More than there are slots; with a seed, choice k has seed + k."""
        body = server.post(TEXT, self.ASKED).body
        alone = [server.post(TEXT, self.ASKED | {"n": 1, "seed": 3 + k}).body["choices"][0] for k in range(6)]
        assert body["choices"] == [each | {"index": k} for k, each in enumerate(alone)]
        assert len({each["text"] for each in alone}) == 6
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (240, 240)

    def test_come_side_by_side(self, server: Served) -> None:
        events = server.events(TEXT, self.ASKED | {"stream": True})
        whole = server.post(TEXT, self.ASKED).body["choices"]
        order = [event["choices"][0]["index"] for event in events]
        assert order != sorted(order)
        for number, choice in enumerate(whole):
            parts = [event["choices"][0] for event in events if event["choices"][0]["index"] == number]
            assert "".join(part["text"] for part in parts) == choice["text"]
            assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["length"]

    def test_of_a_conversation(self, server: Served) -> None:
        asked = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "seed": 1, "n": 3}
        streamed = asked | {"stream": True, "stream_options": {"include_usage": True}}
        whole = server.post("/v1/chat/completions", asked).body
        events = server.events("/v1/chat/completions", streamed)
        for number, choice in enumerate(whole["choices"]):
            deltas = [event["choices"][0] for event in events if event["choices"]]
            text = "".join(each["delta"].get("content", "") for each in deltas if each["index"] == number)
            assert (number, text) == (choice["index"], choice["message"]["content"])
        assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]

    def test_leave_room_for_others(self, server: Served) -> None:
        """A slot that somebody waits for is not taken for one more choice, and who leaves frees all."""
        endless = self.ASKED | {"n": 100, "max_tokens": 700, "stream": True}
        leaving = server.open(TEXT, endless)
        leaving.readline()
        assert until(lambda: all(slot["is_processing"] for slot in server.get("/slots").body), 5)
        assert server.post(TEXT, ASKED | {"prompt": "Hello"}).status == 200
        leaving.close()
        assert until(lambda: not any(slot["is_processing"] for slot in server.get("/slots").body), 10)

    def test_that_cannot_be_are_a_problem_at_once(self, server: Served) -> None:
        assert server.post(TEXT, self.ASKED | {"prompt": [5] * 2000}).status == 400
