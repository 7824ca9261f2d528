"""Several models in a cgroup whose memory suffices for one of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_cgroup import MemoryGroup, memory_group
from server_process import ServerProcess, parse_events
from tiny import tiny_llama

LIMIT = 600 << 20
CACHE_TOKENS = 8192  # 256 MiB of KV cache for two sequences
TEXT, STREAM = "/v1/completions", {"prompt": "Hello", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
SHORT = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models with large KV caches, and one whose cache is larger than the limit."""
    folder, sizes = tmp_path_factory.mktemp("models"), {"n_head": 16, "n_head_kv": 16, "head_dim": 128}
    keys = {"llama.attention.key_length": 128, "llama.attention.value_length": 128}
    return [
        tiny_llama(folder / f"{name}.gguf", seed=n_layer, n_ctx=CACHE_TOKENS, n_layer=n_layer, **sizes, **keys)
        for name, n_layer in (("first", 2), ("second", 3), ("large", 8))
    ]


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with memory_group(LIMIT) as made:
        yield made


def text_of(events: list[Any]) -> str:
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


def loaded(server: ServerProcess) -> list[str]:
    return [each["id"] for each in server.get("/v1/models").body["data"] if "meta" in each]


def test_the_second_model_takes_the_memory_of_the_first(models: list[Path], group: MemoryGroup) -> None:
    arguments = [*models, "--models-max", 2, "--ctx-size", CACHE_TOKENS, "--parallel", 2]
    with ServerProcess(*arguments, prepare=group.enter) as server:
        for name in ("first", "second", "first"):
            answer = server.post(TEXT, SHORT | {"model": name})
            assert answer.status == 200, answer.body
            assert answer.body["model"] == name
            assert loaded(server) == [name]
        assert int(group.usage.read_text()) < LIMIT
    with ServerProcess(*arguments) as server:  # outside of the group
        for name in ("first", "second"):
            assert server.post(TEXT, SHORT | {"model": name}).status == 200
        assert sorted(loaded(server)) == ["first", "second"]


def test_a_running_answer_is_finished_before_its_model_is_unloaded(models: list[Path], group: MemoryGroup) -> None:
    arguments = [*models, "--models-max", 2, "--ctx-size", CACHE_TOKENS, "--parallel", 2]
    with ServerProcess(*arguments, prepare=group.enter) as server:
        names = "first", "second"
        first, second = (text_of(server.events(TEXT, STREAM | {"model": name, "stream": True})) for name in names)
        for _ in range(2):
            with server.open(TEXT, STREAM | {"model": "first", "stream": True}) as running:
                begin = json.loads(next(line for line in running if line.startswith(b"data: "))[6:])
                other = server.post(TEXT, STREAM | {"model": "second"})
                rest = list(parse_events(running))
            assert text_of([begin, *rest]) == first
            assert other.body["choices"][0]["text"] == second
            assert loaded(server) == ["second"]


def test_a_cache_above_the_limit_is_refused(models: list[Path], group: MemoryGroup) -> None:
    with ServerProcess(*models, "--ctx-size", CACHE_TOKENS, "--parallel", 2, prepare=group.enter) as server:
        answer = server.post(TEXT, SHORT | {"model": "large"})
        assert answer.status == 503, answer.body
        assert "GiB are available" in answer.body["error"]["message"]
        assert server.post(TEXT, SHORT | {"model": "first"}).status == 200
