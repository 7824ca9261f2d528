"""LoRA adapters of the server: /lora-adapters, and the field `lora` of requests."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lora_adapter import lora_adapter
from server_process import ServerProcess

import localinfer

PROMPT = "the capital and the country " * 12
REQUEST = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "temperature": 0, "logprobs": 1}
SCALES = [(0.0, 0.0), (1.0, 0.0), (0.5, -1.0)]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [lora_adapter(folder / f"{seed}.gguf", seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def server(tiny: Path, adapters: list[Path]) -> Iterator[ServerProcess]:
    files = ("--lora", adapters[0], "--lora-scaled", f"{adapters[1]}:0.25")
    with ServerProcess(tiny, *files, "--parallel", "3", "--ctx-size", "1024", "--no-prefix-store") as served:
        yield served


def in_request(scales: tuple[float, ...]) -> list[dict[str, float]]:
    """Return the field of a request, without the adapters whose scale is 0."""
    return [{"id": number, "scale": scale} for number, scale in enumerate(scales) if scale]


def answer(server: ServerProcess, **fields: Any) -> Any:
    actual = server.post("/v1/completions", REQUEST | fields)
    assert actual.status == 200
    return actual.body


@pytest.fixture(scope="module")
def alone(tiny: Path, adapters: list[Path]) -> dict[tuple[float, ...], str]:
    """Return the texts of the library with each of the scales."""
    with localinfer.load(tiny, lora=list(map(str, adapters)), ctx_size=1024, prefix_store=False) as model:
        return {
            scales: model.generate(
                PROMPT, n_predict=12, ignore_eos=True, temp=0, lora_scales=dict(enumerate(scales))
            ).text
            for scales in SCALES
        }


def test_requests_with_different_scales_are_independent(
    server: ServerProcess, alone: dict[tuple[float, ...], str]
) -> None:
    """They run side by side in the same batches, and none uses the cached prefix of another."""
    assert len(set(alone.values())) == len(SCALES)

    def ask(scales: tuple[float, ...]) -> str:
        return str(answer(server, lora=in_request(scales))["choices"][0]["text"])

    with ThreadPoolExecutor(6) as clients:
        assert list(clients.map(ask, SCALES * 4)) == [alone[scales] for scales in SCALES * 4]


def test_only_equal_scales_share_a_prefix(server: ServerProcess) -> None:
    fields = {"prompt": "another " * 40}

    def cached(scales: tuple[float, ...]) -> int:
        usage = answer(server, lora=in_request(scales), **fields)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached((0.125, 0.0)) == 0
    assert cached((0.25, 0.0)) == 0
    assert cached((0.125, 0.0)) > 30
    assert cached((0.0, 0.125)) == 0


def test_scales_of_the_server(
    server: ServerProcess, adapters: list[Path], alone: dict[tuple[float, ...], str]
) -> None:
    listed = server.get("/lora-adapters").body
    assert listed == [
        {"id": 0, "path": str(adapters[0]), "scale": 1.0}, {"id": 1, "path": str(adapters[1]), "scale": 0.25}
    ]  # fmt: skip
    for scales in SCALES:
        assert server.post("/lora-adapters", in_request(scales)).body == {"success": True}
        assert [each["scale"] for each in server.get("/lora-adapters").body] == list(scales)
        assert answer(server)["choices"][0]["text"] == alone[scales]
        other = SCALES[0]
        assert answer(server, lora=in_request(other))["choices"][0]["text"] == alone[other]
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    chats = [server.post("/v1/chat/completions", chat | {"lora": in_request(scales)}).body for scales in SCALES]
    assert len({each["choices"][0]["message"]["content"] for each in chats}) == len(SCALES)
    settings = server.post("/completion", {"prompt": "x", "n_predict": 1, "lora": [{"id": 1, "scale": 2}]}).body
    assert settings["generation_settings"]["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 2.0}]


@pytest.mark.parametrize(
    "lora",
    [
        [{"id": 2, "scale": 1.0}], [{"id": -1, "scale": 1}], [{"id": True}], [{"scale": 1.0}], {"id": 0}, "0", [0],
        [{"id": 0, "scale": "1"}], [{"id": 0, "scale": 1e999}], [{"id": 0, "scale": 10**400}],
    ],
)  # fmt: skip
def test_invalid_scales(server: ServerProcess, lora: Any) -> None:
    actual = server.post("/v1/completions", REQUEST | {"lora": lora})
    assert actual.status == 400
    assert "lora" in actual.body["error"]["message"]
    assert server.post("/lora-adapters", lora).status == 400


def test_a_model_without_adapters(tiny: Path) -> None:
    with ServerProcess(tiny, "--ctx-size", "256") as served:
        assert served.get("/lora-adapters").body == []
        assert served.post("/lora-adapters", []).body == {"success": True}
        assert answer(served, lora=[])["usage"]["completion_tokens"] == 12
        assert served.post("/v1/completions", REQUEST | {"lora": [{"id": 0, "scale": 1}]}).status == 400
