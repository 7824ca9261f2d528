"""OpenAI's API over HTTP. Responses equal those of the Python API."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

from localinfer import Model, load

MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
REQUEST = {"messages": MESSAGES, "max_tokens": 24, "seed": 7}


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[Model]:
    with load(tiny) as loaded:
        yield loaded


def content(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


class TestChat:
    def test_equals_python_api(self, server: ServerProcess, model: Model) -> None:
        status, answer, _ = server.post(CHAT, REQUEST)
        run = model.stream_chat(MESSAGES, seed=7, n_predict=24)
        expected = "".join(piece.text for piece in run)
        assert (status, content(answer)) == (200, expected)
        assert answer["model"] == "tiny"
        assert answer["object"] == "chat.completion"
        assert answer["choices"][0]["finish_reason"] == ("length" if run.stats.finish_reason == "length" else "stop")
        assert answer["usage"]["prompt_tokens"] == run.stats.prompt_tokens
        assert answer["usage"]["completion_tokens"] == run.stats.generated_tokens

    def test_streamed(self, server: ServerProcess) -> None:
        whole = server.post(CHAT, REQUEST).body
        chunks = server.events(CHAT, REQUEST | {"stream": True, "stream_options": {"include_usage": True}})
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert deltas[0] == {"role": "assistant", "content": None}
        assert "".join(delta.get("content") or "" for delta in deltas) == content(whole)
        *before, end, last = chunks
        assert end["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert all(chunk["usage"] is None for chunk in before)
        assert len({chunk["id"] for chunk in chunks}) == 1

    def test_no_usage_by_default(self, server: ServerProcess) -> None:
        assert not any("usage" in chunk for chunk in server.events(CHAT, REQUEST | {"stream": True}))

    def test_several_choices(self, server: ServerProcess) -> None:
        answer = server.post(CHAT, REQUEST | {"n": 3}).body
        texts = [choice["message"]["content"] for choice in answer["choices"]]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert len(set(texts)) == 3
        assert texts[0] == content(server.post(CHAT, REQUEST).body)
        assert answer["usage"]["completion_tokens"] == 72
        streamed = server.events(CHAT, REQUEST | {"n": 3, "stream": True})
        for index, text in enumerate(texts):
            chunks_of_choice = [chunk["choices"][0] for chunk in streamed if chunk["choices"][0]["index"] == index]
            assert "".join(choice["delta"].get("content") or "" for choice in chunks_of_choice) == text

    def test_stop(self, server: ServerProcess) -> None:
        text = content(server.post(CHAT, REQUEST).body)
        stop = text[8:11]
        answer = server.post(CHAT, REQUEST | {"stop": stop}).body
        assert content(answer) == text[: text.index(stop)]
        assert answer["choices"][0]["finish_reason"] == "stop"

    def test_logprobs(self, server: ServerProcess) -> None:
        request = REQUEST | {"logprobs": True, "top_logprobs": 3, "temperature": 0}
        choice = server.post(CHAT, request).body["choices"][0]
        logprobs_content = choice["logprobs"]["content"]
        assert len(logprobs_content) == 24
        joined_bytes = b"".join(bytes(each["bytes"]) for each in logprobs_content)
        assert joined_bytes.decode("utf-8", "replace") == choice["message"]["content"]
        for each in logprobs_content:
            assert each["top_logprobs"][0]["logprob"] == each["logprob"] < 0
            assert len(each["top_logprobs"]) == 3
        streamed = [chunk["choices"][0]["logprobs"] for chunk in server.events(CHAT, request | {"stream": True})]
        assert [each for logprobs in streamed if logprobs for each in logprobs["content"]] == logprobs_content

    def test_json(self, server: ServerProcess) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
                  "required": ["n"], "additionalProperties": False}  # fmt: skip
        form = {"type": "json_schema", "json_schema": {"name": "number", "strict": True, "schema": schema}}
        answer = json.loads(content(server.post(CHAT, {"messages": MESSAGES, "response_format": form}).body))
        assert 1 <= answer["n"] <= 9
        request = {"messages": MESSAGES, "response_format": {"type": "json_object", "schema": schema}}
        assert set(json.loads(content(server.post(CHAT, request).body))) == {"n"}
        truncated = server.post(CHAT, REQUEST | {"response_format": form, "max_tokens": 2})
        assert truncated.status == 200
        assert truncated.body["choices"][0]["finish_reason"] == "length"

    def test_llama_cpp_fields(self, server: ServerProcess) -> None:
        request = {"messages": MESSAGES, "grammar": 'root ::= "yes" | "no"', "min_p": 0.1, "cache_prompt": True,
                 "samplers": ["top_k", "temperature"]}  # fmt: skip
        assert content(server.post(CHAT, request).body) in ("yes", "no")

    def test_prompt_prefix_is_cached(self, server: ServerProcess) -> None:
        long = [{"role": "user", "content": "the " * 50}]
        first = server.post(CHAT, REQUEST | {"messages": long}).body
        longer = [*long, {"role": "assistant", "content": content(first)}, {"role": "user", "content": "more"}]
        again = server.post(CHAT, REQUEST | {"messages": longer}).body
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]

    def test_final_assistant_message_is_continued(self, server: ServerProcess, model: Model) -> None:
        partial = [*MESSAGES, {"role": "assistant", "content": "One, two"}]
        run = model.stream_chat(partial, continue_final_message=True, seed=7, n_predict=24)
        assert content(server.post(CHAT, REQUEST | {"messages": partial}).body) == "".join(piece.text for piece in run)


class TestCompletions:
    def test_equals_python_api(self, server: ServerProcess, model: Model) -> None:
        answer = server.post(TEXT, {"prompt": "Hello", "seed": 3, "max_tokens": 20}).body
        expected = "".join(piece.text for piece in model.stream("Hello", seed=3, n_predict=20))
        assert answer["choices"][0]["text"] == expected
        assert answer["object"] == "text_completion"

    def test_default_length(self, server: ServerProcess) -> None:
        request = {"prompt": "Hello", "ignore_eos": True}
        assert server.post(TEXT, request).body["usage"]["completion_tokens"] == 16

    def test_prompt_kinds(self, server: ServerProcess, model: Model) -> None:
        ids = model.tokenize("Hello")
        alone = server.post(TEXT, {"prompt": "Hello", "seed": 3}).body["choices"][0]["text"]
        for prompt, n in (ids, 1), (["Hello", "Hello"], 2), ([ids, ids, ids], 3):
            answer = server.post(TEXT, {"prompt": prompt, "seed": 3}).body
            assert [choice["text"] for choice in answer["choices"]] == [alone] * n
            assert [choice["index"] for choice in answer["choices"]] == [*range(n)]

    def test_streamed_with_echo_and_logprobs(self, server: ServerProcess) -> None:
        request = {"prompt": "Hello", "seed": 3, "echo": True, "logprobs": 2}
        whole = server.post(TEXT, request).body["choices"][0]
        assert whole["text"].startswith("Hello")
        chunks = [chunk["choices"][0] for chunk in server.events(TEXT, request | {"stream": True})]
        assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
        offsets = [offset for chunk in chunks if chunk["logprobs"] for offset in chunk["logprobs"]["text_offset"]]
        assert offsets == whole["logprobs"]["text_offset"]
        assert all(1 <= len(top) <= 2 for top in whole["logprobs"]["top_logprobs"])


class TestErrors:
    @pytest.mark.parametrize(
        ("changed", "param"),
        [
            ({"messages": None}, "messages"),
            ({"messages": "text"}, "messages"),
            ({"messages": [123]}, "messages"),
            ({"messages": [{}]}, "messages"),
            ({"messages": [{"role": 123, "content": "a"}]}, "messages"),
            ({"messages": [{"role": "user", "content": 123}]}, "messages"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
            ({"temperature": "hot"}, "temperature"),
            ({"temperature": -1}, "temperature"),
            ({"top_p": 2}, "top_p"),
            ({"max_tokens": -5}, "max_tokens"),
            ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
            ({"seed": "x"}, "seed"),
            ({"stop": [1]}, "stop"),
            ({"stop": ""}, "stop"),
            ({"n": 0}, "n"),
            ({"n": True}, "n"),
            ({"stream": "yes"}, "stream"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            ({"logit_bias": {"a": "b"}}, "logit_bias"),
            ({"samplers": 5}, "samplers"),
            ({"samplers": {"top_k": 1}}, "samplers"),
            ({"response_format": {"type": "poem"}}, "response_format"),
            ({"response_format": {"type": "json_schema"}}, "response_format"),
            (
                {"response_format": {"type": "json_object", "schema": {"type": "number", "multipleOf": "x"}}},
                "response_format.schema",
            ),
            ({"grammar": "root ::= ("}, "grammar"),
            ({"chat_template": "{{ 1 }}"}, "chat_template"),
            ({"chat_template_kwargs": {"messages": []}}, None),
            ({"tools": "all"}, "tools"),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_invalid_field(
        self, server: ServerProcess, changed: dict[str, Any], param: str | None, stream: bool
    ) -> None:
        status, answer, _ = server.post(CHAT, REQUEST | {"stream": stream} | changed)
        assert status == 400, answer
        assert answer["error"]["type"] == "invalid_request_error"
        assert answer["error"]["param"] == param
        assert server.get("/health").status == 200

    @pytest.mark.parametrize(
        ("body", "status"),
        [(b"{", 400), (b"[]", 400), (b"\xff", 400), (b"[" * 100_000, 400), (b'"' + b"a" * (33 << 20) + b'"', 413)],
        ids=["cut", "list", "bytes", "deep", "large"],
    )
    def test_invalid_body(self, server: ServerProcess, body: bytes, status: int) -> None:
        assert server.post(CHAT, body).status == status
        assert server.get("/health").status == 200

    def test_lone_surrogate(self, server: ServerProcess) -> None:
        answer = server.post(TEXT, b'{"prompt": "a\\ud800", "echo": true, "max_tokens": 1}')
        assert answer.status == 200
        assert answer.body["choices"][0]["text"].startswith("a?")

    def test_prompt_exceeds_the_context(self, server: ServerProcess) -> None:
        status, answer, _ = server.post(TEXT, {"prompt": [5] * 20_000})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "20000" in answer["error"]["message"]
        assert (answer["error"]["n_prompt_tokens"], answer["error"]["n_ctx"]) == (20_000, 16384)

    def test_unknown_routes_and_methods(self, server: ServerProcess) -> None:
        assert server.post("/v1/nothing", {}).status == 404
        assert server.get(CHAT).status == 405
        # A server with one model accepts any name.
        assert server.get("/v1/models/../../etc/passwd").status in (200, 404)


def test_models(server: ServerProcess) -> None:
    [logprobs_content] = server.get("/v1/models").body["data"]
    assert (logprobs_content["id"], logprobs_content["object"]) == ("tiny", "model")
    assert server.get("/v1/models/tiny").body["id"] == "tiny"
