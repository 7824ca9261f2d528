"""Third-party client packages, used as documented."""

import json
from typing import Any

import pytest
from server_process import ServerProcess

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}


class TestOpenAI:
    @pytest.fixture
    def client(self, server: ServerProcess) -> Any:
        openai = pytest.importorskip("openai", reason="there is no package openai")
        return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def test_chat(self, client: Any) -> None:
        request = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "seed": 1}
        whole = client.chat.completions.create(**request, logprobs=True, top_logprobs=2)
        assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens == 12
        streamed = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
        deltas = [chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices]
        assert "".join(deltas) == whole.choices[0].message.content
        assert streamed[-1].usage.completion_tokens == 12

    def test_closing_a_stream(self, client: Any) -> None:
        request = {"model": "tiny", "messages": MESSAGES, "max_tokens": 16000, "extra_body": {"ignore_eos": True}}
        with client.chat.completions.create(**request, stream=True) as stream:
            next(iter(stream))
        assert client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1, timeout=5)

    def test_structured_output(self, client: Any) -> None:
        from pydantic import BaseModel

        class Number(BaseModel):
            n: bool

        done = client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Number)
        assert isinstance(done.choices[0].message.parsed, Number)

    def test_completions_and_models(self, client: Any) -> None:
        request = {"model": "tiny", "prompt": ["Hello", "the"], "max_tokens": 4}
        done = client.completions.create(**request, logprobs=1, extra_body={"ignore_eos": True})
        assert [len(choice.logprobs.tokens) for choice in done.choices] == [4, 4]
        assert [each.id for each in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").object == "model"

    def test_errors(self, client: Any) -> None:
        import openai

        with pytest.raises(openai.BadRequestError) as problem:
            client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
        assert problem.value.param == "temperature"
        assert "temperature" in problem.value.message
        with pytest.raises(openai.BadRequestError) as problem:
            client.completions.create(model="tiny", prompt=[5] * 20_000)
        assert problem.value.code == "context_length_exceeded"

    def test_asynchronous(self, server: ServerProcess) -> None:
        import asyncio

        openai = pytest.importorskip("openai", reason="there is no package openai")

        async def three() -> list[str]:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
                ask = client.chat.completions.create
                done = await asyncio.gather(
                    *(ask(model="tiny", messages=MESSAGES, max_tokens=8, seed=1) for _ in range(3))
                )
                return [each.choices[0].message.content for each in done]

        assert len(set(asyncio.run(three()))) == 1


class TestLangChain:
    @pytest.fixture
    def client(self, server: ServerProcess) -> Any:
        langchain_openai = pytest.importorskip("langchain_openai", reason="there is no package langchain-openai")
        return langchain_openai.ChatOpenAI(
            model="tiny", base_url=f"{server.url}/v1", api_key="none", seed=1, max_tokens=12, max_retries=0
        )

    def test_chat(self, client: Any) -> None:
        whole = client.invoke([("system", "Be brief."), ("user", "Hello")])
        assert whole.usage_metadata["output_tokens"] == 12
        streamed = list(client.stream([("system", "Be brief."), ("user", "Hello")]))
        assert "".join(chunk.content for chunk in streamed) == whole.content
        assert client.batch([[("system", "Be brief."), ("user", "Hello")]] * 2)[1].content == whole.content

    def test_structured_output(self, client: Any) -> None:
        from pydantic import BaseModel

        class Number(BaseModel):
            n: bool

        longer = client.model_copy(update={"max_tokens": 200})
        actual = longer.with_structured_output(Number, method="json_schema").invoke("Hello")
        assert isinstance(actual, Number)

    def test_responses(self, client: Any) -> None:
        newer = client.model_copy(update={"use_responses_api": True, "seed": None, "temperature": 0})
        assert newer.invoke("Hello").text
        assert "".join(chunk.text for chunk in newer.stream("Hello"))

    def test_embeddings(self, server: ServerProcess) -> None:
        langchain_openai = pytest.importorskip("langchain_openai", reason="there is no package langchain-openai")
        vectors = langchain_openai.OpenAIEmbeddings(
            model="tiny", base_url=f"{server.url}/v1", api_key="none", check_embedding_ctx_length=False
        )
        assert len(vectors.embed_query("Hello")) == 256


class TestOllama:
    @pytest.fixture
    def client(self, server: ServerProcess) -> Any:
        ollama = pytest.importorskip("ollama", reason="there is no package ollama")
        return ollama.Client(host=server.url)

    def test_chat(self, client: Any) -> None:
        options = {"seed": 1, "num_predict": 12}
        whole = client.chat("tiny", MESSAGES, options=options)
        assert whole.eval_count == 12
        chunks = list(client.chat("tiny", MESSAGES, options=options, stream=True))
        assert "".join(chunk.message.content for chunk in chunks) == whole.message.content
        assert chunks[-1].done_reason == "length"

    def test_generate(self, client: Any) -> None:
        done = client.generate("tiny", "Hello", format=SCHEMA)
        assert json.loads(done.response)["n"] in (1, 2)

    def test_models(self, client: Any) -> None:
        [listed] = client.list().models
        assert listed.model == "tiny"
        assert client.show("tiny").modelinfo["general.architecture"] == "llama"
        client.generate("tiny", keep_alive="5m")
        assert [each.model for each in client.ps().models] == ["tiny"]

    def test_errors(self, client: Any) -> None:
        import ollama

        with pytest.raises(ollama.ResponseError, match="temperature"):
            client.chat("tiny", MESSAGES, options={"temperature": -1})
