"""Conversations: history, truncation, sessions, tool calls, branches and reuse of evaluated tokens."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import tiny_llama

import localinfer
from cli.chat.conversation import Conversation
from cli.chat.display.answer_scores import answer_tokens
from localinfer import Model, sessions
from localinfer.errors import ContextOverflowError
from localinfer.generation.pieces import Piece, Stats, ToolCall
from localinfer.generation.result import GenerationStream


class EchoModel:
    """A model that answers with the number of messages and the question; "full" fills the context."""

    options = SimpleNamespace(system_prompt="", ctx_policy="drop-turns")
    limit = 100  # messages that fit in the context

    def truncate_messages(self, messages: list[dict[str, str]], **settings: object) -> list[dict[str, str]]:
        """Return the last messages that fit, without the oldest turns."""
        return messages if len(messages) <= self.limit else messages[-self.limit + (self.limit + 1) % 2 :]

    def stream_chat(self, messages: list[dict[str, str]], **settings: object) -> GenerationStream:
        return GenerationStream(self.answer(messages), Stats())

    def answer(self, messages: list[dict[str, str]]) -> Iterator[Piece]:
        question = messages[-1]["content"]
        if question == "call":
            return iter(
                [Piece("I look.", 4, calls=(ToolCall("a", {}, "call00000"), ToolCall("b", {"x": 1}, "call00001")))]
            )
        if question == "too long":
            raise ContextOverflowError("too long")
        return self.pieces(f"{len(messages)} {question}")

    def pieces(self, text: str) -> Iterator[Piece]:
        yield from [Piece("<think>", 1, "tag"), Piece(" hm ", 2, "reasoning"), Piece("</think>", 3, "tag")]
        yield from (Piece(word, 4) for word in text.split())
        if "full" in text:
            raise ContextOverflowError("full")


@pytest.fixture
def conversation() -> Conversation:
    echo_model: Any = EchoModel()
    return Conversation(echo_model)


def test_turns(conversation: Conversation) -> None:
    list(conversation.ask("a"))
    list(conversation.ask("b"))
    assert [message["content"] for message in conversation.messages] == ["a", "1a", "b", "3b"]
    assert conversation.messages[1]["reasoning_content"] == "hm"
    assert (conversation.messages[1]["reasoning_ids"], conversation.messages[1]["ids"]) == ([1, 2, 3], [4, 4])
    assert answer_tokens(conversation.messages) == [1, 2, 3, 4, 4]
    assert conversation.answer == "3b"
    assert conversation.undo() == "b"
    assert len(conversation.messages) == 2


def test_answer_that_is_stopped_or_fills_the_context_is_kept(conversation: Conversation) -> None:
    run = conversation.ask("a b c")
    for _ in range(5):
        next(run)
    run.close()
    assert conversation.answer == "1a"
    with pytest.raises(ContextOverflowError):
        list(conversation.ask("full"))
    assert conversation.answer == "3full"


def test_question_that_does_not_fit_is_not_kept(conversation: Conversation) -> None:
    list(conversation.ask("a"))
    with pytest.raises(ContextOverflowError):
        list(conversation.ask("too long"))
    assert conversation.answer == "1a"


def test_regenerate(conversation: Conversation) -> None:
    list(conversation.ask("a"))
    run = conversation.regenerate()
    run.close()
    assert conversation.answer == "1a"
    list(conversation.regenerate())
    assert [message["content"] for message in conversation.messages] == ["a", "1a"]
    conversation.start_over(None)
    assert conversation.undo() == ""


def test_session_stores_messages_and_their_replacements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
    session, echo_model = sessions.create("echo_model", "chat"), EchoModel()
    conversation = Conversation(echo_model, session)  # type: ignore[arg-type]
    list(conversation.ask("a"))
    list(conversation.ask("b"))
    conversation.undo()
    list(conversation.ask("c"))
    actual = sessions.open_session("chat")
    assert [message["content"] for message in actual.messages] == ["a", "1a", "c", "3c"]
    again = Conversation(echo_model, actual)  # type: ignore[arg-type]
    list(again.regenerate())
    assert [message["content"] for message in sessions.open_session("chat").messages] == ["a", "1a", "c", "3c"]


def test_a_question_is_stored_when_its_answer_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is killed meanwhile does not lose it. The next question replaces it, unless it is answered."""
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
    conversation = Conversation(EchoModel(), sessions.create("echo_model", "chat"))  # type: ignore[arg-type]
    list(conversation.ask("a"))
    running = conversation.ask("b")
    next(running)
    killed = sessions.open_session("chat")  # as another program finds it
    assert [message["content"] for message in killed.messages] == ["a", "1a", "b"]
    list(running)

    resumed = Conversation(EchoModel(), killed)  # type: ignore[arg-type]
    list(resumed.regenerate())
    assert [message["content"] for message in resumed.messages] == ["a", "1a", "b", "3b"]
    resumed.messages = resumed.messages[:3]
    list(resumed.ask("c"))
    assert [message["content"] for message in resumed.messages] == ["a", "1a", "c", "3c"]


def test_an_answer_stays_saved_until_its_replacement_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash while an answer is regenerated leaves the old one in the session."""
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
    session, echo_model = sessions.create("echo_model", "chat"), EchoModel()
    conversation = Conversation(echo_model, session)  # type: ignore[arg-type]
    list(conversation.ask("a"))
    before = session.path.read_text()
    monkeypatch.setattr(echo_model, "answer", lambda messages: iter([Piece("other ", 5), Piece("words", 6)]))
    stream = conversation.regenerate()
    next(stream)
    assert session.path.read_text() == before
    list(stream)
    added = session.path.read_text().removeprefix(before).splitlines()
    assert [json.loads(line).get("keep") for line in added] == [1, None]


def test_a_new_conversation_leaves_the_session_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
    conversation = Conversation(EchoModel(), sessions.create("echo_model", "old"))  # type: ignore[arg-type]
    conversation.system = "brief"
    list(conversation.ask("a"))
    conversation.start_over(sessions.create("echo_model", "new"))
    conversation.system = "long"
    list(conversation.ask("b"))
    old, new = sessions.open_session("old"), sessions.open_session("new")
    assert [[message["content"] for message in each.messages] for each in (old, new)] == [["a", "1a"], ["b", "1b"]]
    assert (old.system, new.system) == ("brief", "long")
    assert conversation.go_back()
    assert (conversation.answer, conversation.system) == ("1a", "brief")
    assert not conversation.go_back()
    list(conversation.ask("c"))
    assert len(sessions.open_session("old").messages) == 4
    assert Conversation(EchoModel(), old).system == "brief"  # type: ignore[arg-type]


@pytest.mark.parametrize("is_saved", [True, False])
def test_removed_messages_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_saved: bool) -> None:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
    conversation = Conversation(EchoModel(), sessions.create("m", "chat") if is_saved else None)  # type: ignore[arg-type]
    assert not conversation.restore(1)
    for question in "abc":
        list(conversation.ask(question))
    whole = conversation.messages
    conversation.undo()
    conversation.undo()
    if is_saved:  # from the file
        conversation = Conversation(EchoModel(), sessions.open_session("chat"))  # type: ignore[arg-type]
    assert conversation.restore(1)
    assert conversation.messages == whole[:4]
    assert conversation.restore(1)
    assert conversation.messages == whole
    assert not conversation.restore(1)
    conversation.undo()
    list(conversation.ask("d"))  # replaces c
    assert conversation.restore(1)
    assert conversation.messages == whole
    assert conversation.restore(1)
    assert conversation.answer == "5d"
    assert not conversation.restore(2)


def test_oldest_turns_are_dropped_if_the_context_is_full() -> None:
    echo_model = EchoModel()
    echo_model.limit = 3
    conversation = Conversation(echo_model)  # type: ignore[arg-type]
    dropped: list[tuple[list[str], str]] = []

    def note_dropped(messages: list[dict[str, Any]]) -> None:
        dropped.append(([each["content"] for each in messages], conversation.answer))

    conversation.window.on_drop = note_dropped
    for question in "abc":
        list(conversation.ask(question))
    assert [message["content"] for message in conversation.messages] == ["a", "1a", "b", "3b", "c", "3c"]
    assert conversation.window.n_dropped == 2
    assert dropped == [(["a", "1a"], "3b")]  # before the answer
    assert [each["content"] for each in conversation.window.next_dropped(conversation.messages)] == ["b", "3b"]
    assert conversation.window.n_dropped == 2
    conversation.start_over(None)
    assert conversation.window.n_dropped == 0


def test_a_question_that_is_not_answered_drops_nothing() -> None:
    """The question is too long by itself; a shorter one is answered with all messages before it."""
    echo_model = EchoModel()
    conversation = Conversation(echo_model)  # type: ignore[arg-type]
    dropped: list[object] = []
    conversation.window.on_drop = dropped.append
    list(conversation.ask("a"))
    echo_model.limit = 1
    with pytest.raises(ContextOverflowError):
        list(conversation.ask("too long"))
    assert (conversation.window.n_dropped, dropped) == (0, [])
    echo_model.limit = 3
    list(conversation.ask("b"))
    assert conversation.answer == "3b"


def test_tool_calls_and_results(conversation: Conversation) -> None:
    list(conversation.ask("call"))
    assert [call["function"]["name"] for call in conversation.pending_tool_calls] == ["a", "b"]
    assert conversation.answer == "I look."
    assert conversation.messages[-1]["ids"] == [4] == answer_tokens(conversation.messages)
    list(conversation.send_tool_results(["one", "two"]))
    assert not conversation.pending_tool_calls
    assert [message["role"] for message in conversation.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert conversation.messages[3] == {"role": "tool", "tool_call_id": "call00001", "name": "b", "content": "two"}
    assert conversation.answer == "4two"
    list(conversation.regenerate())
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
    assert conversation.undo() == "call"
    assert not conversation.messages


def test_tool_calls_in_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
    echo_model: Any = EchoModel()
    list(Conversation(echo_model, sessions.create("echo_model", "chat")).ask("call"))
    actual = sessions.open_session("chat")
    again = Conversation(echo_model, actual)
    assert [call["id"] for call in again.pending_tool_calls] == ["call00000", "call00001"]
    assert '"name": "b"' in actual.markdown()
    list(again.send_tool_results(["one", "two"]))
    assert [message["role"] for message in sessions.open_session("chat").messages][2:] == ["tool", "tool", "assistant"]


def test_edited_tool_calls_of_a_session(conversation: Conversation) -> None:
    for calls in ("abc", [1], [{"id": 1}], [{"id": "a", "function": "b"}], None):
        conversation.messages = [{"role": "assistant", "content": "", "tool_calls": calls}]
        assert not conversation.pending_tool_calls
        assert conversation.undo() == ""


def test_context_policy_stop_keeps_all_turns() -> None:
    echo_model = EchoModel()
    echo_model.limit, echo_model.options = 1, SimpleNamespace(system_prompt="", ctx_policy="stop")
    conversation = Conversation(echo_model)  # type: ignore[arg-type]
    for question in "abc":
        list(conversation.ask(question))
    assert conversation.answer == "5c"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_llama(tmp_path_factory.mktemp("model") / "llama.gguf")
    with localinfer.load(path, threads=2, ctx_size=512, ignore_eos=True, n_predict=12, temp=3.0, seed=5) as model:
        yield model


def test_generated_tokens_are_not_evaluated_again(model: Model) -> None:
    """The tokens of these answers differ from the tokenization of their texts."""
    conversation, new = Conversation(model), []
    control = [id for id in range(model.n_vocab) if not model.detokenize([id])]
    # Real models do not generate control tokens within an answer.
    conversation.settings["logit_bias"] = dict.fromkeys(control, -math.inf)
    for _ in range(10):
        n_generated = sum(len(message["ids"]) for message in conversation.messages[1::2])
        list(conversation.ask("Hello"))
        new.append(conversation.stats.prompt_tokens - conversation.stats.reused_tokens)
    assert n_generated == 9 * 12
    assert len(set(new[1:])) == 1
    assert new[1] <= new[0] + 4  # the end of the answer; its last token was not evaluated yet
    texts = [model.tokenize(message["content"], add_special=False) for message in conversation.messages[1::2]]
    assert texts != [message["ids"] for message in conversation.messages[1::2]]


SHOWS_CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# {{ tools }} #}"
)


def test_tool_calls_are_not_evaluated_again(model: Model) -> None:
    """The model's format of a tool call differs from the template's."""
    conversation, new = Conversation(model, tools=[{"name": "now"}]), []
    conversation.settings |= {
        "chat_template": SHOWS_CALLS, "regex": r'<tool_call>\{"arguments" : \{\}, "name":"now"\}</tool_call>',
        "ignore_eos": False, "n_predict": 200,
    }  # fmt: skip
    list(conversation.ask("Hello"))
    for _ in range(4):
        list(conversation.send_tool_results(["noon"]))
        new.append(conversation.stats.prompt_tokens - conversation.stats.reused_tokens)
    assert [len(message.get("tool_calls", ())) for message in conversation.messages] == [0, 1] + 4 * [0, 1]
    assert len(set(new)) == 1
    suffix = model.tokenize("<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n<|im_start|>assistant\n", parse_special=True)
    assert new[0] <= len(suffix) + 1  # the last token of an answer was not evaluated yet


def test_score_answer(model: Model) -> None:
    conversation = Conversation(model)
    assert conversation.score_answer(3) == []
    generated = list(conversation.ask("Hello"))
    scored = conversation.score_answer(3)
    assert [(piece.id, len(piece.top)) for piece in scored] == [(piece.id, 3) for piece in generated]
    assert conversation.score_answer(3) is scored
    conversation.settings["logprobs"] = 3
    assert list(conversation.regenerate()) == scored


def test_regenerate_from_another_token(model: Model) -> None:
    conversation = Conversation(model)
    list(conversation.ask("Hello"))
    first = answer_tokens(conversation.messages)
    other = conversation.score_answer(3)[4].top[2].id
    pieces = list(conversation.regenerate([*first[:4], other]))
    assert (conversation.stats.prompt_tokens - conversation.stats.reused_tokens, len(conversation.messages)) == (1, 2)
    assert [piece.id for piece in pieces[:5]] == [*first[:4], other] == answer_tokens(conversation.messages)[:5]
    assert len(pieces) == 5 + 12
    assert "".join(piece.text for piece in pieces) == conversation.answer
