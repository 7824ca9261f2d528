"""The `anthropic` package and langchain-anthropic, used as documented."""

from collections.abc import Iterator
from typing import Any

import pytest
from server_process import ServerProcess
from tiny import CHATML, Field, tiny_llama

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
TEMPLATE = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{# <think> #}" + CHATML
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = {"type": "object", "properties": {"a": DIGIT}, "required": ["a"]}
ADD: Any = {"name": "add", "description": "Add", "input_schema": SCHEMA}
FORCED: Any = {"type": "tool", "name": "add", "disable_parallel_tool_use": True}
REQUEST: Any = {"model": "tiny", "max_tokens": 12, "messages": MESSAGES, "extra_body": {"seed": 1}}
CALL: Any = REQUEST | {"max_tokens": 300, "tools": [ADD], "tool_choice": FORCED}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("agent") / "tiny.gguf"
    model = tiny_llama(path, n_ctx=8192, **{"tokenizer.chat_template": Field("STRING", TEMPLATE)})
    with ServerProcess(model, "--api-key", "secret", "--parallel", "1") as server:
        yield server


class TestAnthropic:
    @pytest.fixture
    def client(self, served: ServerProcess) -> Any:
        anthropic = pytest.importorskip("anthropic", reason="there is no package anthropic")
        return anthropic.Anthropic(base_url=served.url, api_key="secret", max_retries=0)

    def test_message(self, client: Any) -> None:
        whole = client.messages.create(**REQUEST, system=[{"type": "text", "text": "Be brief."}])
        assert whole.usage.output_tokens == 12
        assert whole.stop_reason == "max_tokens"
        with client.messages.stream(**REQUEST, system="Be brief.") as stream:
            assert "".join(stream.text_stream) == whole.content[0].text
            final = stream.get_final_message()
        assert final.content[0].text == whole.content[0].text
        assert final.stop_reason == "max_tokens"
        assert final.usage.cache_read_input_tokens > 0
        counted = client.messages.count_tokens(model="tiny", messages=MESSAGES, system="Be brief.")
        assert counted.input_tokens == final.usage.input_tokens + final.usage.cache_read_input_tokens

    def test_beta_client(self, client: Any) -> None:
        answer = client.beta.messages.create(**REQUEST, betas=["interleaved-thinking-2025-05-14", "no-such-beta"])
        assert answer.content[0].type == "text"

    def test_tool_round_trip(self, client: Any) -> None:
        whole = client.messages.create(**CALL)
        assert whole.stop_reason == "tool_use"
        [call] = whole.content
        assert (call.type, call.name) == ("tool_use", "add")
        assert call.input["a"] in range(10)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "2"}]}
        turns = [*MESSAGES, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
        answer = client.messages.create(**REQUEST | {"messages": turns, "tools": [ADD]})
        assert answer.content
        assert answer.usage.cache_read_input_tokens > 100

    def test_streamed_tool_use(self, client: Any) -> None:
        with client.messages.stream(**CALL) as stream:
            parts = [event.partial_json for event in stream if event.type == "input_json"]
            [call] = stream.get_final_message().content
        assert len(parts) > 2
        assert call.input["a"] in range(10)

    def test_thinking(self, client: Any) -> None:
        grammar = {"grammar": 'root ::= "<think>" "the Hello" "</think>" "Hello"'}
        request = REQUEST | {"max_tokens": 200, "extra_body": grammar}
        with client.messages.stream(**request, thinking={"type": "enabled", "budget_tokens": 100}) as stream:
            assert "".join(event.thinking for event in stream if event.type == "thinking") == "the Hello"
            thinking, text = stream.get_final_message().content
        assert thinking.signature
        assert text.text == "Hello"
        turns = [*MESSAGES, {"role": "assistant", "content": [thinking, text]}, *MESSAGES]
        assert client.messages.create(**REQUEST | {"messages": turns}).content

    def test_structured_output(self, client: Any) -> None:
        from pydantic import BaseModel

        class Number(BaseModel):
            n: bool

        done = client.messages.parse(**REQUEST | {"max_tokens": 300}, output_format=Number)
        assert isinstance(done.parsed_output, Number)

    def test_closing_a_stream(self, client: Any) -> None:
        endless = REQUEST | {"max_tokens": 8000, "extra_body": {"ignore_eos": True}}
        with client.messages.stream(**endless) as stream:
            next(iter(stream))
        assert client.messages.create(**REQUEST, timeout=5)

    def test_models(self, client: Any) -> None:
        assert [each.id for each in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").display_name == "tiny"

    def test_errors(self, client: Any, served: ServerProcess) -> None:
        import anthropic

        with pytest.raises(anthropic.BadRequestError) as problem:
            client.messages.create(**REQUEST | {"extra_body": {"temperature": -1}})
        assert problem.value.body["error"]["message"].startswith("temperature: ")
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 8192 maximum"):
            client.messages.create(**REQUEST | {"messages": [{"role": "user", "content": "the " * 9000}]})
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=served.url, api_key="wrong").messages.create(**REQUEST)
        bearer = anthropic.Anthropic(base_url=served.url, auth_token="secret", max_retries=0)
        assert bearer.messages.create(**REQUEST).content

    def test_asynchronous(self, served: ServerProcess) -> None:
        import asyncio

        anthropic = pytest.importorskip("anthropic", reason="there is no package anthropic")

        async def answers() -> list[str]:
            async with anthropic.AsyncAnthropic(base_url=served.url, api_key="secret") as client:
                done = await asyncio.gather(*(client.messages.create(**REQUEST) for _ in range(3)))
                return [each.content[0].text for each in done]

        assert len(set(asyncio.run(answers()))) == 1


class TestLangChain:
    @pytest.fixture
    def client(self, served: ServerProcess) -> Any:
        package = pytest.importorskip("langchain_anthropic", reason="there is no package langchain-anthropic")
        return package.ChatAnthropic(
            model="tiny", base_url=served.url, api_key="secret", temperature=0, max_tokens=12, max_retries=0
        )

    def test_chat(self, client: Any) -> None:
        whole = client.invoke([("system", "Be brief."), ("user", "Hello")])
        assert whole.usage_metadata["output_tokens"] == 12
        chunks = list(client.stream([("system", "Be brief."), ("user", "Hello")]))
        total = chunks[0]
        for chunk in chunks[1:]:
            total += chunk
        assert total.text == whole.text
        assert total.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"]

    def test_tools(self, client: Any) -> None:
        longer = client.model_copy(update={"max_tokens": 300})
        bound = longer.bind_tools([ADD], tool_choice="add", parallel_tool_calls=False)
        first = bound.invoke("Hello")
        [call] = first.tool_calls
        assert call["args"]["a"] in range(10)
        result = {"role": "tool", "tool_call_id": call["id"], "content": "2"}
        assert client.invoke([("user", "Hello"), first, result]).usage_metadata["input_tokens"] > 0
