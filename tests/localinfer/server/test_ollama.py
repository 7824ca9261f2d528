"""Ollama's API over HTTP."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

from localinfer import Model, load
from localinfer.version import VERSION

MESSAGES = [{"role": "user", "content": "Hello"}]
OPTIONS = {"seed": 7, "num_predict": 20, "num_ctx": 4096}
CHAT = {"model": "tiny", "messages": MESSAGES, "options": OPTIONS}
GENERATE = {"model": "tiny", "prompt": "Hello", "options": OPTIONS}
COUNTS = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"}


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[Model]:
    with load(tiny) as loaded:
        yield loaded


class TestGeneration:
    def test_chat(self, server: ServerProcess, model: Model) -> None:
        *chunks, last = server.lines_of("/api/chat", CHAT)
        expected = "".join(piece.text for piece in model.stream_chat(MESSAGES, seed=7, n_predict=20))
        assert "".join(chunk["message"]["content"] for chunk in chunks) == expected
        assert all(chunk["message"]["role"] == "assistant" and not chunk["done"] for chunk in chunks)
        assert last["done"]
        assert last["done_reason"] == "length"
        assert last["eval_count"] == 20
        assert last.keys() >= COUNTS
        whole = server.post("/api/chat", CHAT | {"stream": False}).body
        assert whole["message"] == {"role": "assistant", "content": expected}
        assert whole.keys() >= COUNTS | {"model", "created_at", "done"}

    def test_generate(self, server: ServerProcess, model: Model) -> None:
        *chunks, last = server.lines_of("/api/generate", GENERATE)
        whole = server.post("/api/generate", GENERATE | {"stream": False}).body
        chat = server.post("/api/chat", CHAT | {"stream": False}).body
        assert "".join(chunk["response"] for chunk in chunks) == whole["response"] == chat["message"]["content"]
        assert (last["response"], last["done"]) == ("", True)
        raw = server.post("/api/generate", GENERATE | {"raw": True, "stream": False}).body
        assert raw["response"] == "".join(piece.text for piece in model.stream("Hello", seed=7, n_predict=20))
        answer = server.post("/api/generate", GENERATE | {"system": "Be brief", "stream": False}).body
        assert answer["prompt_eval_count"] > whole["prompt_eval_count"]

    @pytest.mark.parametrize("stream", [True, False])
    def test_larger_context_than_that_of_the_server(self, server: ServerProcess, stream: bool) -> None:
        problem = "options.num_ctx: 20000 is more than the context of the server, 16384 tokens"
        answer = server.post("/api/chat", CHAT | {"options": {"num_predict": 1, "num_ctx": 20000}, "stream": stream})
        assert answer.headers["warning"] == f'299 localinfer "{problem}"'
        assert any(problem in line for line in server.lines)
        assert "warning" not in server.post("/api/chat", CHAT | {"stream": stream}).headers

    def test_format(self, server: ServerProcess) -> None:
        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
                  "additionalProperties": False}  # fmt: skip
        whole = server.post("/api/chat", {"messages": MESSAGES, "format": schema, "stream": False}).body
        assert json.loads(whole["message"]["content"])["n"] in (1, 2)

    def test_load_and_unload(self, server: ServerProcess) -> None:
        [answer] = server.lines_of("/api/generate", {"model": "tiny"})
        assert (answer["done"], answer["done_reason"]) == (True, "load")
        assert [each["name"] for each in server.get("/api/ps").body["models"]] == ["tiny"]
        [answer] = server.lines_of("/api/generate", {"model": "tiny", "keep_alive": 0})
        assert answer["done_reason"] == "unload"
        assert server.get("/api/ps").body == {"models": []}

    @pytest.mark.parametrize("keep_alive", [0.5, "500ms", "0h0.5s"])
    def test_idle_model_is_unloaded(self, keep_alive: object, server: ServerProcess) -> None:
        server.lines_of("/api/chat", CHAT | {"keep_alive": keep_alive})
        start = time.monotonic()
        while server.get("/api/ps").body["models"]:
            assert time.monotonic() - start < 60
            time.sleep(0.05)
        assert time.monotonic() - start > 0.3

    def test_keep_alive(self, server: ServerProcess) -> None:
        """The last request counts; one without keep_alive keeps the model loaded."""
        for keep_alive, minimum, maximum in (("1h30m", 5390, 5410), (-1, 1e9, 1e10), (90, 80, 100), (None, 1e9, 1e10)):
            server.post("/api/embed", {"model": "tiny", "input": "a", "keep_alive": keep_alive})
            [answer] = server.get("/api/ps").body["models"]
            ends = datetime.fromisoformat(answer["expires_at"])
            assert minimum < (ends - datetime.now(UTC)).total_seconds() < maximum

    @pytest.mark.parametrize("keep_alive", ["abc", "10", "5x", "1h-3m", [], True, ""])
    def test_invalid_keep_alive(self, keep_alive: object, server: ServerProcess) -> None:
        status, answer, _ = server.post("/api/chat", CHAT | {"keep_alive": keep_alive})
        assert status == 400
        assert answer["error"].startswith("keep_alive: must be a number of seconds or a duration such as 10m")

    @pytest.mark.parametrize(
        "changed",
        [
            {"messages": [1]},
            {"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]},
            {"options": {"temperature": "x"}},
            {"options": []},
            {"options": {"num_ctx": "x"}},
            {"format": "xml"},
            {"stream": 1},
        ],
    )
    def test_errors_are_strings(self, server: ServerProcess, changed: dict[str, Any]) -> None:
        status, answer, _ = server.post("/api/chat", CHAT | changed)
        assert status == 400
        assert isinstance(answer["error"], str)

    def test_errors_before_the_endpoint_are_strings(self, server: ServerProcess) -> None:
        foreign = server.get("/api/tags", host="evil.example")
        too_large = server.post("/api/chat", b'"' + b"a" * (33 << 20) + b'"')
        assert (foreign.status, too_large.status) == (403, 413)
        assert isinstance(foreign.body["error"], str)
        assert isinstance(too_large.body["error"], str)


class TestModels:
    def test_tags_and_ps(self, server: ServerProcess, tiny: Path) -> None:
        [answer] = server.get("/api/tags").body["models"]
        assert (answer["name"], answer["size"]) == ("tiny", tiny.stat().st_size)
        assert answer["details"]["family"] == "llama"
        assert answer["details"]["parameter_size"].endswith("M")
        server.lines_of("/api/generate", {"model": "tiny"})
        [running] = server.get("/api/ps").body["models"]
        assert running["digest"] == answer["digest"]
        assert running["context_length"] == 16384

    def test_show(self, server: ServerProcess) -> None:
        answer = server.post("/api/show", {"model": "tiny:latest"}).body
        assert answer["capabilities"] == ["completion"]
        assert answer["model_info"]["general.architecture"] == "llama"
        assert "tokenizer.ggml.tokens" not in answer["model_info"]
        all_of_it = server.post("/api/show", {"model": "tiny", "verbose": True}).body["model_info"]
        assert "Hello" in all_of_it["tokenizer.ggml.tokens"]
        assert "im_start" in answer["template"]
        assert f'TEMPLATE """{answer["template"]}"""\n' in answer["modelfile"]

    def test_version(self, server: ServerProcess) -> None:
        answer = server.get("/api/version").body["version"]
        assert answer != VERSION
        assert all(field.isdigit() for field in answer.split("."))
