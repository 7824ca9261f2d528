"""Diffusion language models on the server: answers at once and in parts, and fields that do not fit."""

import json
from collections.abc import Iterator

import checkpoints
import pytest
import reference_models
from server_process import ServerProcess

REQUEST = {"prompt": "Hello", "max_tokens": 20, "seed": 1, "ignore_eos": True, "diffusion_steps": 5}
CHAT = {key: value for key, value in REQUEST.items() if key != "prompt"} | {
    "messages": [{"role": "user", "content": "Hello"}]
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("diffusion")
    checkpoint = reference_models.checkpoint("llada", folder)
    (checkpoint / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    path = checkpoints.as_type(checkpoint, folder / "model.gguf", "Q8_0")
    with ServerProcess(path, "--parallel", "2") as served:
        yield served


@pytest.mark.parametrize(("endpoint", "request_body"), [("completions", REQUEST), ("chat/completions", CHAT)])
def test_a_stream_has_the_same_text(server: ServerProcess, endpoint: str, request_body: dict[str, object]) -> None:
    whole = server.post(f"/v1/{endpoint}", request_body)
    assert whole.status == 200, whole.body
    assert whole.body["usage"]["completion_tokens"] == 20
    streamed = server.post(f"/v1/{endpoint}", {**request_body, "stream": True}).body.decode()
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    parts = [choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices]
    choice = whole.body["choices"][0]
    assert "".join(parts) == (choice["text"] if "text" in choice else choice["message"]["content"])
    assert len([part for part in parts if part]) > 5


@pytest.mark.parametrize(("field", "name"), [
    ({"grammar": 'root ::= "a"'}, "grammar"), ({"response_format": {"type": "json_object"}}, "json_mode"),
    ({"diffusion_eps": 0.1, "diffusion_block_length": 4}, "diffusion_eps"),
])  # fmt: skip
def test_fields_that_do_not_fit_are_refused(server: ServerProcess, field: dict[str, object], name: str) -> None:
    answer = server.post("/v1/chat/completions", CHAT | field)
    assert answer.status == 400
    assert answer.body["error"]["message"].startswith(name)
