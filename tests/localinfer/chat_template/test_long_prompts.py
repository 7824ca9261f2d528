"""Long prompts: a child process gives the same result, and can be ended."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import CHATML, Field, tiny_gemma3, tiny_llama

import localinfer
from localinfer import LocalInferError, Model, UsageError
from localinfer.chat_template import long_prompts
from localinfer.child_process import Child

LONG = "Hello the <|im_end|> \n\n日本 \ud800 " * 10_000  # a little more than MIN_SIZE
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello <|im_end|> the \ud800"}],
    [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "the", "ids": [80, 70]},
     {"role": "user", "content": [{"type": "text", "text": "and"}]}],
    [{"role": "system", "content": ""}, {"role": "user", "content": "日本"},
     {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [None]}}}]}],
]  # fmt: skip


@pytest.fixture(scope="module", params=[tiny_llama, tiny_gemma3])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    template = {"tokenizer.chat_template": Field("STRING", CHATML)}
    path: Path = request.param(tmp_path_factory.mktemp("model") / "tiny.gguf", **template)
    with localinfer.load(path, threads=1, ctx_size=64) as loaded:
        yield loaded


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """The child processes that were started for prompts."""
    started: list[Child] = []
    start = long_prompts.start_child

    def recorded(*arguments: Any) -> Child:
        started.append(start(*arguments))
        return started[-1]

    monkeypatch.setattr(long_prompts, "start_child", recorded)
    return started


def do_nothing() -> None:
    pass


@pytest.mark.parametrize("keywords", [{}, {"add_special": False}, {"parse_special": True}])
def test_tokens_of_a_long_text(model: Model, children: list[Child], keywords: dict[str, bool]) -> None:
    assert model.tokenize(LONG, **keywords, on_wait=do_nothing) == model.tokenize(LONG, **keywords)
    assert len(children) == 1
    assert children[0].poll() is not None
    assert model.tokenize("Hello", **keywords, on_wait=do_nothing) == model.tokenize("Hello", **keywords)
    assert len(children) == 1


def test_overridden_metadata(model: Model, children: list[Child]) -> None:
    changed = not model.tokenizer.add_bos
    with localinfer.load(
        model.file.path, threads=1, ctx_size=64, kv_overrides={"tokenizer.ggml.add_bos_token": changed}
    ) as other:
        assert other.tokenizer.add_bos == changed
        ids = other.tokenize(LONG, on_wait=do_nothing)
    assert ids == other.tokenize(LONG)
    assert len(children) == 1
    assert len(ids) - len(model.tokenize(LONG)) == (1 if changed else -1)


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("keywords", [
    {}, {"parse_special": True}, {"continue_final_message": True}, {"add_generation_prompt": False},
    {"system_prompt": "Be brief."}, {"tools": [{"name": "f"}], "documents": [{"title": "a"}]},
    {"template_kwargs": {"x": 1}},
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*does not support tools")
def test_long_conversations(
    model: Model, children: list[Child], monkeypatch: pytest.MonkeyPatch, messages: list[Any], keywords: dict[str, Any]
) -> None:
    expected = model.render(messages, **keywords)
    monkeypatch.setattr(long_prompts, "MIN_SIZE", 0)
    assert model.render(messages, **keywords) == expected
    assert len(children) == 1


def test_errors_are_those_of_this_process(
    model: Model, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{{ raise_exception('these messages are wrong') if messages | length > 1 else messages }}"
    for messages in [MESSAGES * 2, [{"role": "user", "content": "\U000f0000" * (7 << 20)}]]:
        with monkeypatch.context() as context:
            context.setattr(long_prompts, "MIN_SIZE", 1 << 60)
            with pytest.raises(LocalInferError) as expected:
                model.render(messages, chat_template=template)
        monkeypatch.setattr(long_prompts, "MIN_SIZE", 0)
        with pytest.raises(LocalInferError) as error:
            model.render(messages, chat_template=template)
        assert (type(error.value), str(error.value)) == (type(expected.value), str(expected.value))
    assert len(children) == 2


MESSAGES = [{"role": "user", "content": "Hello"}]


def test_conversation_that_json_cannot_express(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_prompts, "MIN_SIZE", 0)
    with pytest.raises(UsageError, match=r"^messages: "):
        model.render([{"role": "user", "content": "Hello", "extra": {1, 2}}])
    circular: dict[str, Any] = {"role": "user", "content": "Hello"}
    circular["extra"] = circular
    with pytest.raises(UsageError, match=r"^messages: "):
        model.render([circular])


@pytest.mark.parametrize("is_chat", [False, True])
def test_waiting_can_be_stopped(
    model: Model, children: list[Child], monkeypatch: pytest.MonkeyPatch, is_chat: bool
) -> None:
    class Stopped(BaseException):
        pass

    calls = []

    def stop(stage: str, *_: int) -> None:
        calls.append(stage)
        if len(calls) > 2:
            raise Stopped

    monkeypatch.setattr(model._session, "progress", stop)
    start = time.monotonic()
    with pytest.raises(Stopped):
        model.render([{"role": "user", "content": LONG}]) if is_chat else model.stream(LONG * 12)
    assert calls == ["prompt"] * 3  # the first one before the process starts, if it is a chat
    assert children[0].poll() is not None
    assert time.monotonic() - start < 10


def test_child_that_ends(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_prompts, "CODE", "raise SystemExit")
    with pytest.raises(LocalInferError, match="ended unexpectedly"):
        model.tokenize(LONG, on_wait=do_nothing)


def test_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_prompts, "MIN_SIZE", 1000)
    assert not long_prompts.is_long("a" * 900)
    assert long_prompts.is_long("a" * 1000)
    assert not long_prompts.is_long([{"role": "user", "content": "a" * 100}] * 4)
    assert long_prompts.is_long([{"role": "user", "content": "a" * 100}] * 9)
    assert long_prompts.is_long([[]] * 100)
    assert long_prompts.is_long([{"ids": [1] * 1000}])
