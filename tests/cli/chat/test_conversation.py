"""What a conversation remembers."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import tiny_llama

import localinfer
from cli.chat.conversation import Conversation
from localinfer import Model, sessions
from localinfer.errors import ContextOverflow
from localinfer.generation.pieces import Call, Piece


class Parrot:
    """Answers with the question and the number of messages; "full" fills the context."""

    options = SimpleNamespace(system_prompt="", ctx_policy="drop-turns")
    room = 100  # messages

    def fitting(self, messages: list[dict[str, str]], **settings: object) -> list[dict[str, str]]:
        """The last ones, a turn less at a time."""
        return messages if len(messages) <= self.room else messages[-self.room + (self.room + 1) % 2 :]

    def chat(self, messages: list[dict[str, str]], **settings: object) -> Iterator[Piece]:
        question = messages[-1]["content"]
        if question == "call":
            return iter([Piece("I look.", 4, calls=(Call("a", {}, "call00000"), Call("b", {"x": 1}, "call00001")))])
        if question == "too long":
            raise ContextOverflow("too long")
        return self.pieces(f"{len(messages)} {question}")

    def pieces(self, text: str) -> Iterator[Piece]:
        yield from [Piece("<think>", 1, "tag"), Piece(" hm ", 2, "thought"), Piece("</think>", 3, "tag")]
        yield from (Piece(word, 4) for word in text.split())
        if "full" in text:
            raise ContextOverflow("full")


@pytest.fixture
def conversation() -> Conversation:
    parrot: Any = Parrot()
    return Conversation(parrot)


def test_turns(conversation: Conversation) -> None:
    list(conversation.ask("a"))
    list(conversation.ask("b"))
    assert [message["content"] for message in conversation.messages] == ["a", "1a", "b", "3b"]
    assert conversation.messages[1]["reasoning_content"] == "hm"
    assert (conversation.messages[1]["thought_ids"], conversation.messages[1]["ids"]) == ([1, 2, 3], [4, 4])
    assert conversation.written == [1, 2, 3, 4, 4]
    assert conversation.answer == "3b"
    assert conversation.undo() == "b"
    assert len(conversation.messages) == 2


def test_answer_that_is_stopped_or_fills_the_context_is_kept(conversation: Conversation) -> None:
    run = conversation.ask("a b c")
    for _ in range(5):
        next(run)
    run.close()
    assert conversation.answer == "1a"
    with pytest.raises(ContextOverflow):
        list(conversation.ask("full"))
    assert conversation.answer == "3full"


def test_question_that_does_not_fit_is_not_kept(conversation: Conversation) -> None:
    list(conversation.ask("a"))
    with pytest.raises(ContextOverflow):
        list(conversation.ask("too long"))
    assert conversation.answer == "1a"


def test_regenerate(conversation: Conversation) -> None:
    list(conversation.ask("a"))
    run = conversation.regenerate()
    run.close()
    assert conversation.answer == "1a"
    list(conversation.regenerate())
    assert [message["content"] for message in conversation.messages] == ["a", "1a"]
    conversation.clear()
    assert conversation.undo() == ""


def test_a_session_keeps_what_is_said_and_what_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
    session, parrot = sessions.create("parrot", "talk"), Parrot()
    conversation = Conversation(parrot, session)  # type: ignore[arg-type]
    list(conversation.ask("a"))
    list(conversation.ask("b"))
    conversation.undo()
    list(conversation.ask("c"))
    found = sessions.named("talk")
    assert [message["content"] for message in found.messages] == ["a", "1a", "c", "3c"]
    again = Conversation(parrot, found)  # type: ignore[arg-type]
    list(again.regenerate())
    again.clear()
    assert sessions.named("talk").messages == []


def test_whole_oldest_turns_are_left_out_where_all_do_not_fit() -> None:
    parrot = Parrot()
    parrot.room = 3
    conversation = Conversation(parrot)  # type: ignore[arg-type]
    for question in "abc":
        list(conversation.ask(question))
    assert [message["content"] for message in conversation.messages] == ["a", "1a", "b", "3b", "c", "3c"]
    assert conversation.left_out == 2
    conversation.clear()
    assert conversation.left_out == 0


def test_calls_and_their_results(conversation: Conversation) -> None:
    list(conversation.ask("call"))
    assert [call["function"]["name"] for call in conversation.open_calls] == ["a", "b"]
    assert conversation.answer == "I look."
    assert conversation.messages[-1]["ids"] == [4] == conversation.written
    list(conversation.tell(["one", "two"]))
    assert not conversation.open_calls
    assert [message["role"] for message in conversation.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert conversation.messages[3] == {"role": "tool", "tool_call_id": "call00001", "name": "b", "content": "two"}
    assert conversation.answer == "4two"
    list(conversation.regenerate())
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
    assert conversation.undo() == "call"
    assert not conversation.messages


def test_calls_in_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
    parrot: Any = Parrot()
    list(Conversation(parrot, sessions.create("parrot", "talk")).ask("call"))
    found = sessions.named("talk")
    again = Conversation(parrot, found)
    assert [call["id"] for call in again.open_calls] == ["call00000", "call00001"]
    assert '"name": "b"' in found.markdown()
    list(again.tell(["one", "two"]))
    assert [message["role"] for message in sessions.named("talk").messages][2:] == ["tool", "tool", "assistant"]


def test_calls_of_a_session_that_somebody_has_changed(conversation: Conversation) -> None:
    for calls in ("abc", [1], [{"id": 1}], [{"id": "a", "function": "b"}], None):
        conversation.messages = [{"role": "assistant", "content": "", "tool_calls": calls}]
        assert not conversation.open_calls
        assert conversation.undo() == ""


def test_all_turns_are_shown_where_the_policy_says_so() -> None:
    parrot = Parrot()
    parrot.room, parrot.options = 1, SimpleNamespace(system_prompt="", ctx_policy="stop")
    conversation = Conversation(parrot)  # type: ignore[arg-type]
    for question in "abc":
        list(conversation.ask(question))
    assert conversation.answer == "5c"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_llama(tmp_path_factory.mktemp("model") / "llama.gguf")
    with localinfer.load(path, threads=2, ctx_size=512, ignore_eos=True, n_predict=12, temp=3.0, seed=5) as model:
        yield model


def test_what_was_said_is_never_read_again(model: Model) -> None:
    """The tokens of these answers are not those that the tokenizer would make of their texts."""
    conversation, new = Conversation(model), []
    control = [id for id in range(model.n_vocab) if not model.detokenize([id])]
    conversation.settings["logit_bias"] = dict.fromkeys(control, -math.inf)  # real models keep them apart
    for _ in range(10):
        said = sum(len(message["ids"]) for message in conversation.messages[1::2])
        list(conversation.ask("Hello"))
        new.append(model.stats.prompt_tokens - model.stats.reused_tokens)
    assert said == 9 * 12
    assert len(set(new[1:])) == 1
    assert new[1] <= new[0] + 4  # what ends an answer, whose last token was not read yet
    texts = [model.tokenize(message["content"], add_special=False) for message in conversation.messages[1::2]]
    assert texts != [message["ids"] for message in conversation.messages[1::2]]


SHOWS_CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# {{ tools }} #}"
)


def test_nor_are_calls_of_tools(model: Model) -> None:
    """The model writes them otherwise than the template."""
    conversation, new = Conversation(model, tools=[{"name": "now"}]), []
    conversation.settings |= {
        "chat_template": SHOWS_CALLS, "regex": r'<tool_call>\{"arguments" : \{\}, "name":"now"\}</tool_call>',
        "ignore_eos": False, "n_predict": 200,
    }  # fmt: skip
    list(conversation.ask("Hello"))
    for _ in range(4):
        list(conversation.tell(["noon"]))
        new.append(model.stats.prompt_tokens - model.stats.reused_tokens)
    assert [len(message.get("tool_calls", ())) for message in conversation.messages] == [0, 1] + 4 * [0, 1]
    assert len(set(new)) == 1
    behind = model.tokenize("<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n<|im_start|>assistant\n", parse_special=True)
    assert new[0] <= len(behind) + 1  # the last token of an answer was not read yet


def test_an_answer_token_by_token(model: Model) -> None:
    conversation = Conversation(model)
    assert conversation.scored(3) == []
    generated = list(conversation.ask("Hello"))
    told = conversation.scored(3)
    assert [(piece.id, len(piece.top)) for piece in told] == [(piece.id, 3) for piece in generated]
    assert conversation.scored(3) is told
    conversation.settings["logprobs"] = 3
    assert list(conversation.regenerate()) == told


def test_another_branch(model: Model) -> None:
    conversation = Conversation(model)
    list(conversation.ask("Hello"))
    first = conversation.written
    other = conversation.scored(3)[4].top[2].id
    pieces = list(conversation.regenerate([*first[:4], other]))
    assert (model.stats.prompt_tokens - model.stats.reused_tokens, len(conversation.messages)) == (1, 2)
    assert [piece.id for piece in pieces[:5]] == [*first[:4], other] == conversation.written[:5]
    assert len(pieces) == 5 + 12
    assert "".join(piece.text for piece in pieces) == conversation.answer
