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
        busy = [slot for slot in server.get("/slots").body if slot["is_processing"]]
        assert any(slot.get("n_past", 0) > 0 and slot["n_ctx"] == 1024 for slot in busy)
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
