"""Long responses are encoded, and models are found, beside the event loop, which answers other requests meanwhile."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localinfer.embedding.prompts import Prompts
from localinfer.errors import LocalInferError
from localinfer.server.anthropic import models as anthropic_models
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import APIError
from localinfer.server.llama_cpp import embeddings as llama_cpp_embeddings
from localinfer.server.llama_cpp import lora_adapters, properties, router
from localinfer.server.models.catalog import Catalog, ServedModel
from localinfer.server.models.model_cache import ModelCache
from localinfer.server.ollama import managing
from localinfer.server.ollama import models as ollama_models
from localinfer.server.openai import embeddings as openai_embeddings
from localinfer.server.openai import models as openai_models
from localinfer.server.requests.request_fields import parse_json
from localinfer.server.settings import Settings

VECTORS = np.linspace(0, 1, 1000 * 1000, dtype=np.float32).reshape(1000, 1000)


class Slot:
    async def call(self, work: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(work)


class LeasingDispatcher:
    """Leases a model with these embeddings."""

    settings = Settings()
    observer = None

    @contextlib.asynccontextmanager
    async def lease(self, _: object) -> AsyncIterator[SimpleNamespace]:
        model = SimpleNamespace(
            embed=lambda ids, **_: VECTORS[: len(ids)], tokenize=lambda *_, **__: [1], n_vocab=10, n_ctx=10,
            prompts=Prompts({}),
        )  # fmt: skip
        yield SimpleNamespace(model=model, slot=Slot(), name="model")


async def longest_pause(work: Awaitable[Any]) -> tuple[Any, float, float]:
    """Return the result of `work`, its seconds, and the longest time that the event loop did not run."""
    task, longest, start = asyncio.ensure_future(work), 0.0, time.monotonic()
    while not task.done():
        before = time.monotonic()
        await asyncio.sleep(0)
        longest = max(longest, time.monotonic() - before)
    return await task, time.monotonic() - start, longest


def request(fields: dict[str, Any]) -> Any:
    async def body() -> bytes:
        import json

        return json.dumps(fields).encode()

    return SimpleNamespace(body=body, app=SimpleNamespace(state=SimpleNamespace(dispatcher=LeasingDispatcher())))


@pytest.mark.parametrize("format", ["openai", "llama.cpp"])
def test_embeddings(format: str) -> None:
    fields = {"input": ["Hello"] * len(VECTORS)}
    work = (
        openai_embeddings.encoded_embeddings(fields, LeasingDispatcher()) if format == "openai"  # type: ignore[arg-type]
        else llama_cpp_embeddings.embeddings(request(fields))
    )  # fmt: skip
    result, seconds, longest = asyncio.run(longest_pause(work))
    assert longest < seconds / 4
    content = parse_json(result if format == "openai" else result.body)
    items = content["data"] if format == "openai" else content
    assert [each["index"] for each in items] == list(range(len(VECTORS)))
    assert np.array_equal(np.float32(items[-1]["embedding"]).ravel(), VECTORS[-1])


def test_long_body() -> None:
    """A list of a million token ids is parsed in another thread, which lets the event loop run."""
    content = b'{"tokens":[%b]}' % b",".join([b"12345"] * (1 << 20))
    value, seconds, longest = asyncio.run(longest_pause(asyncio.to_thread(parse_json, content)))
    assert value["tokens"] == [12345] * (1 << 20)
    assert longest < seconds / 4


@pytest.mark.parametrize(
    "endpoint",
    [openai_models.retrieve_model, anthropic_models.retrieve_model, anthropic_models.list_models],
    ids=["openai", "anthropic", "anthropic_list"],
)
def test_directories_are_read_in_other_threads(endpoint: Callable[[Any], Awaitable[Any]]) -> None:
    threads = []

    def list_models() -> list[ServedModel]:
        threads.append(threading.current_thread())
        return [ServedModel("a", "a.gguf")]

    def load(_: str) -> Any:
        raise AssertionError("no request loads a model")

    dispatcher = SimpleNamespace(model_cache=ModelCache(Catalog(list_models), load), settings=Settings())
    app = SimpleNamespace(state=SimpleNamespace(dispatcher=dispatcher))

    async def respond() -> Any:
        return await endpoint(SimpleNamespace(path_params={"name": "a"}, app=app))

    assert b'"id":"a"' in asyncio.run(respond()).body
    assert threads
    assert threading.main_thread() not in threads


REQUESTS: dict[str, tuple[Callable[[Any], Awaitable[Any]], dict[str, Any]]] = {
    "/props": (properties.props, {"query_params": {"model": "a"}}),
    "/lora-adapters": (lora_adapters.list_adapters, {"query_params": {"model": "a"}}),
    "/models": (router.list_models, {"query_params": {"reload": "1"}, "url": SimpleNamespace(path="/models")}),
    "/api/show": (ollama_models.show, {"body": b'{"model": "a"}'}),
    "/api/tags": (ollama_models.tags, {}),
    "/api/ps": (ollama_models.running, {}),
    "/api/copy": (managing.copy, {"body": b'{"source": "a", "destination": "a"}'}),
    "/api/delete": (managing.delete, {"body": b'{"model": "a"}'}),
    "/api/create": (managing.create, {"body": b'{"model": "new-name", "from": "a"}'}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_models_are_found_beside_the_event_loop(name: str) -> None:
    """Names are found in directories, which may be slow. Meanwhile, other requests are answered."""
    threads, (endpoint, given) = [], REQUESTS[name]

    def list_models() -> list[ServedModel]:
        threads.append(threading.current_thread())
        return [ServedModel("a", "a.gguf")]

    def load(_: str) -> Any:
        raise LocalInferError("there is no file")

    async def body() -> bytes:
        return bytes(given.get("body", b""))

    async def respond() -> None:
        model_cache = ModelCache(Catalog(list_models, serves_all=True), load)
        state = SimpleNamespace(dispatcher=Dispatcher(model_cache, Settings()), downloads=None)
        request = SimpleNamespace(app=SimpleNamespace(state=state), path_params={}, query_params={}, headers={})
        vars(request).update(given, body=body)
        with contextlib.suppress(APIError, LocalInferError, AttributeError):  # there are no model files
            await endpoint(request)

    asyncio.run(respond())
    assert threads
    assert threading.main_thread() not in threads
