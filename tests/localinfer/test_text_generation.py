"""`generate` and `chat`: results, lists of prompts, coroutines, and the keywords of other libraries."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import make_option_keywords
import pytest
from tiny import tiny_llama

import localinfer
from localinfer import GenerationResult, Model

PROMPT = [5, 6, 7, 8]
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
CHAT = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_llama(tmp_path_factory.mktemp("model") / "llama.gguf")
    with localinfer.load(
        path, threads=2, n_ctx=256, parallel=3, ignore_eos=True, n_predict=12, seed=3, chat_template=TEMPLATE
    ) as loaded:
        yield loaded


def test_a_result_holds_what_a_stream_yields(model: Model) -> None:
    pieces = list(model.stream(PROMPT, logprobs=2))
    result = model.generate(PROMPT, logprobs=2)
    assert result.text == str(result) == "".join(piece.text for piece in pieces)
    assert result.tokens == [piece.id for piece in pieces]
    assert result.finish_reason == "length"
    assert [(each.id, each.logprob, each.top) for each in result.logprobs] == [
        (piece.id, piece.logprob, piece.top) for piece in pieces
    ]
    assert result.reasoning == ""
    assert result.tool_calls == ()
    assert result.stats.generated_tokens == 12


def test_statistics_belong_to_the_result(model: Model) -> None:
    first, second = model.generate(PROMPT, n_predict=3), model.generate(PROMPT, n_predict=5)
    assert (first.stats.generated_tokens, second.stats.generated_tokens) == (3, 5)


def test_a_list_of_prompts_gives_the_results_of_each_alone(model: Model) -> None:
    prompts = [[5, 6, 7, 8], [5, 6, 9], [1, 2], [5, 6, 7, 8, 9]]
    batched = model.generate(prompts)
    with localinfer.load(model.file.path, options=model.options, parallel=1) as alone:
        assert [each.tokens for each in batched] == [alone.generate(prompt).tokens for prompt in prompts]
        assert [each.tokens for each in batched] == [each.tokens for each in alone.generate(prompts)]


def test_a_list_of_texts(model: Model) -> None:
    results = model.generate(["a b", "b a"])
    assert [type(each) for each in results] == [GenerationResult, GenerationResult]


def test_a_chat_continues_with_the_message_of_its_result(model: Model) -> None:
    result = model.chat(CHAT)
    message = result.as_message()
    assert (message["role"], message["content"], message["ids"]) == ("assistant", result.text, result.tokens)
    second = model.chat([*CHAT, message, {"role": "user", "content": "Hi"}])
    assert second.stats.reused_tokens >= result.stats.prompt_tokens + len(result.tokens) - 1


def test_a_list_of_conversations(model: Model) -> None:
    other = [{"role": "user", "content": "Bye"}]
    results = model.chat([CHAT, other])
    assert [each.text for each in results] == [model.chat(CHAT).text, model.chat(other).text]


def test_coroutines(model: Model) -> None:
    async def run() -> tuple[GenerationResult, GenerationResult, list[int], list[int]]:
        return (
            await model.agenerate(PROMPT),
            await model.achat(CHAT),
            [piece.id async for piece in model.astream(PROMPT)],
            [piece.id async for piece in model.astream_chat(CHAT)],
        )

    generated, answered, streamed, stream_answered = asyncio.run(run())
    assert generated.tokens == streamed == model.generate(PROMPT).tokens
    assert answered.tokens == stream_answered == model.chat(CHAT).tokens


def test_closing_a_stream_ends_the_run(model: Model) -> None:
    with model.stream(PROMPT) as stream:
        next(stream)
    assert list(stream) == []
    assert stream.stats.finish_reason == "interrupted"


@pytest.mark.parametrize(
    ("reference", "ours"),
    [
        ({"max_tokens": 4, "temperature": 0.5}, {"n_predict": 4, "temp": 0.5}),
        ({"max_new_tokens": 4, "repetition_penalty": 1.3}, {"n_predict": 4, "repeat_penalty": 1.3}),
    ],
)
def test_keywords_of_other_libraries(model: Model, reference: dict[str, float], ours: dict[str, float]) -> None:
    assert model.generate(PROMPT, **reference).tokens == model.generate(PROMPT, **ours).tokens  # type: ignore[misc]


def test_representations(model: Model) -> None:
    assert repr(model) == f"Model('llama.gguf', llama, {repr(model).split()[2]} parameters, n_ctx=256)"
    result = model.generate(PROMPT)
    assert repr(result).startswith("GenerationResult(")
    assert "12 tokens, length" in repr(result)


def test_options_take_the_place_of_the_environment(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_CTX_SIZE", "64")
    with localinfer.load(model.file.path, options=localinfer.Options(ctx_size=128), n_threads=1) as loaded:
        assert (loaded.n_ctx, loaded.options.threads) == (128, 1)


def test_the_types_of_keywords_are_up_to_date() -> None:
    """If not: python tests/making/make_option_keywords.py"""
    assert Path(make_option_keywords.PAGE).read_text() == make_option_keywords.text()
