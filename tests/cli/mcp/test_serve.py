"""`localinfer mcp`: the client of the library `mcp` with our server, over stdio and over HTTP."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import documented_files
import httpx
import pytest
from answering_model import ANSWER, answering_model
from locations import CHECKOUT
from tiny import tiny_llama

mcp = pytest.importorskip("mcp")
SECONDS = 240  # kernels may have to be compiled
Work = Callable[[Any], Awaitable[Any]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models: one that always gives the same answer, one that goes on and on, an encoder and a reranker."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("minilm.gguf", "bge-reranker-v2-m3.gguf"):
        documented_files.write(name, folder)
    answering_model(folder / "answering.gguf")
    tiny_llama(folder / "talking.gguf", n_ctx=8192)
    return {path.stem: str(path) for path in folder.glob("*.gguf")}


def variables() -> dict[str, str]:
    """Return what the server needs of this environment, of which the library passes only a few variables."""
    own = {name: value for name, value in os.environ.items() if name.startswith("LOCALINFER_")}
    return {**own, "PYTHONPATH": str(CHECKOUT)}


def with_stdio(arguments: list[str], work: Work) -> Any:
    """Run `work` with a client of the server."""

    async def run() -> Any:
        command = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "localinfer", "mcp", *arguments], env=variables()
        )
        with anyio.fail_after(SECONDS):
            async with mcp.Client(command) as client:
                return await work(client)

    return anyio.run(run)


def test_tools_and_their_schemas(models: dict[str, str]) -> None:
    async def work(client: Any) -> Any:
        return client.server_info, (await client.list_tools()).tools

    arguments = [models["answering"], "--embedding", models["minilm"], "--reranker", models["bge-reranker-v2-m3"]]
    info, tools = with_stdio(arguments, work)
    assert info.name == "localinfer"
    schemas = {tool.name: tool.input_schema for tool in tools}
    assert schemas.keys() == {"generate", "embed", "rerank", "list_models"}
    assert schemas["generate"]["required"] == ["prompt"]
    assert {*schemas["generate"]["properties"]} == {"prompt", "system", "max_tokens", "temperature", "json_schema"}
    assert schemas["generate"]["properties"]["max_tokens"]["minimum"] == 1
    assert all("description" in each for schema in schemas.values() for each in schema["properties"].values())
    assert all(tool.output_schema and tool.annotations.read_only_hint for tool in tools)
    _, tools = with_stdio([models["answering"]], work)
    assert {tool.name for tool in tools} == {"generate", "list_models"}


def test_results(models: dict[str, str]) -> None:
    progress: list[tuple[float, str]] = []

    async def work(client: Any) -> list[Any]:
        async def note(done: float, total: float | None, message: str | None) -> None:
            progress.append((done, str(message)))

        before = await client.call_tool("list_models")
        calls = [
            ("generate", {"prompt": "Hi", "system": "Be kind.", "temperature": 0}),
            ("generate", {"prompt": "Hi", "max_tokens": 1}),
            ("generate", {"prompt": "Hi", "json_schema": {"type": "string", "enum": ["ab"]}}),
            ("generate", {"prompt": "Hi", "max_tokens": 0}),
            ("generate", {"prompt": "Hi", "json_schema": {"type": "nothing"}}),
            ("embed", {"texts": ["Hello", "world"]}),
            ("embed", {"texts": [""]}),
            ("rerank", {"query": "Hello", "documents": ["a b", "Hello", "c"], "top_n": 2}),
        ]
        results = [await client.call_tool(name, given, progress_callback=note) for name, given in calls]
        return [before, *results, await client.call_tool("list_models")]

    arguments = [models["answering"], "--embedding", models["minilm"], "--reranker", models["bge-reranker-v2-m3"]]
    before, hello, short, schema, no_tokens, bad_schema, vectors, no_text, ranking, after = with_stdio(arguments, work)
    assert [each["loaded"] for each in before.structured_content["models"]] == [False, False, False]
    assert hello.content[0].text == hello.structured_content["text"] == ANSWER
    assert hello.structured_content["finish_reason"] == "stop"
    assert short.structured_content["generated_tokens"] == 1
    assert short.structured_content["finish_reason"] == "length"
    assert json.loads(schema.content[0].text) == "ab"
    for result, text in [(no_tokens, "max_tokens"), (bad_schema, "type"), (no_text, "empty")]:
        assert result.is_error, text
        assert text in result.content[0].text
        assert "Traceback" not in result.content[0].text
    assert len(vectors.structured_content["embeddings"]) == 2
    assert sum(value**2 for value in vectors.structured_content["embeddings"][0]) == pytest.approx(1, abs=1e-3)
    ranked = ranking.structured_content["results"]
    assert len(ranked) == 2
    assert ranked[0]["relevance_score"] >= ranked[1]["relevance_score"]
    assert ranked[0]["document"] == ["a b", "Hello", "c"][ranked[0]["index"]]
    assert [each["loaded"] for each in after.structured_content["models"]] == [True, True, True]
    assert (0.0, f"loading {models['answering']}") in progress


def test_cancellation(models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is cancelled ends: the next one does not wait for thousands of tokens."""
    monkeypatch.setenv("LOCALINFER_IGNORE_EOS", "1")  # the answer does not end before the first report
    seen: list[float] = []

    async def work(client: Any) -> float:
        async def note(done: float, total: float | None, message: str | None) -> None:
            if done >= 1:
                seen.append(done)
                scope.cancel()

        with anyio.CancelScope() as scope:
            await client.call_tool("generate", {"prompt": "Hi", "max_tokens": 8000}, progress_callback=note)
        began = time.monotonic()
        await client.call_tool("generate", {"prompt": "Hi", "max_tokens": 1})
        return time.monotonic() - began

    seconds = with_stdio([models["talking"]], work)
    assert seen
    assert seen[0] < 7000
    assert seconds < 5


# --- the process ---


def start(*arguments: str, **options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "localinfer", "mcp", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | variables() | options)


INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}  # fmt: skip
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CALL = {
    "jsonrpc": "2.0", "id": 2, "method": "tools/call",
    "params": {"name": "generate", "arguments": {"prompt": "Hi"}},
}  # fmt: skip


def send(process: "subprocess.Popen[bytes]", *messages: object) -> None:
    assert process.stdin
    for message in messages:
        process.stdin.write((message if isinstance(message, str) else json.dumps(message)).encode() + b"\n")
    process.stdin.flush()


def test_stdout_has_only_the_protocol(models: dict[str, str]) -> None:
    """An older client, which also writes a line that is no message. The end of stdin ends the server."""
    process = start(models["answering"])
    assert process.stdout
    send(process, INITIALIZE, INITIALIZED, "garbage \x00", CALL)
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert lines[0]["result"]["protocolVersion"] == "2025-06-18"
    assert next(each for each in lines if each.get("id") == 2)["result"]["content"][0]["text"] == ANSWER
    rest, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in rest.splitlines())
    assert b"Traceback" not in errors


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("is_generating", [False, True])
def test_signals_end_the_server(
    models: dict[str, str], number: signal.Signals, code: int, is_generating: bool
) -> None:
    """The client keeps stdin open. The answer does not end before the first report of its progress."""
    process = start(models["talking"], LOCALINFER_IGNORE_EOS="1")
    assert process.stdout
    assert process.stderr
    send(process, INITIALIZE)
    assert json.loads(process.stdout.readline())["id"] == 1
    if is_generating:
        arguments = {"prompt": "Hi", "max_tokens": 8000}
        params = {"name": "generate", "arguments": arguments, "_meta": {"progressToken": 5}}
        send(process, INITIALIZED, CALL | {"params": params})
        while json.loads(process.stdout.readline())["params"]["progress"] < 1:
            pass
    process.send_signal(number)
    try:
        assert process.wait(20) == code
        assert b"Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["no-such-model"], 3, "no-such-model"),
        (["MODEL", "--embedding", "no-such-model"], 3, "no-such-model"),
        (["MODEL", "--http", "localhost"], 2, "--http: localhost: must be PORT or HOST:PORT"),
        (["MODEL", "--http", "99999"], 2, "--http: 99999: must be PORT or HOST:PORT"),
        (["MODEL", "--allow-host", "x"], 2, "--allow-host: requires --http"),
        (["MODEL", "--http", "192.0.2.1:5"], 1, "192.0.2.1:5: "),
    ],
)
def test_invalid_arguments(models: dict[str, str], arguments: list[str], code: int, problem: str) -> None:
    process = start(*(models["answering"] if each == "MODEL" else each for each in arguments))
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (code, b"")
    assert errors.decode().startswith(f"error: {problem}")
    assert errors.count(b"\n") == 1


# --- HTTP ---


@pytest.fixture(scope="module")
def url(models: dict[str, str]) -> Iterator[str]:
    process = start(models["answering"], "--http", "0")
    assert process.stderr
    line = process.stderr.readline().decode()
    yield line.removeprefix("listening on ").strip()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)


def test_http(url: str) -> None:
    async def run() -> Any:
        with anyio.fail_after(SECONDS):
            async with mcp.Client(url) as client:
                return await client.call_tool("generate", {"prompt": "Hi"})

    assert url.startswith("http://127.0.0.1:")
    assert url.endswith("/mcp")
    assert anyio.run(run).content[0].text == ANSWER


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 200), ({"host": "evil.example"}, 421), ({"origin": "http://evil.example"}, 403),
     ({"origin": "http://localhost:5173"}, 200)],
)  # fmt: skip
def test_web_pages_cannot_use_the_server(url: str, headers: dict[str, str], status: int) -> None:
    accepted = {"accept": "application/json, text/event-stream"}
    assert httpx.post(url, json=INITIALIZE, headers=accepted | headers).status_code == status
