"""Pieces of a real tokenizer, and calls in them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_tokenizers import CONTROL, tiny_tokenizer, types_with

from localinfer.errors import ContextOverflow
from localinfer.generation.calls import Parsed, parser, told_apart
from localinfer.generation.pieces import Piece
from localinfer.tokenizer import Tokenizer

TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {}}}]
MISTRAL, HARMONY, HERMES = "{{ '[TOOL_CALLS]' }}", "<|start|><|channel|>final<|message|>", "<tool_call>"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """[TOOL_CALLS] is a control token, as Mistral has it: it has no text. <|channel|> is known by its name."""
    from tiny import bpe_vocabulary

    spare = [name for name in bpe_vocabulary()["tokenizer.ggml.tokens"].value if name.startswith("<|")][:1]
    types = types_with("bpe", {spare[0]: CONTROL})
    return tiny_tokenizer(tmp_path / "tiny.gguf", "bpe", {spare[0]: "[TOOL_CALLS]"}, token_type=types)


def pieces(tokenizer: Tokenizer, text: str) -> list[Piece]:
    stream = tokenizer.stream()
    return [Piece(stream.push(id), id) for id in tokenizer.encode(text, add_special=False, parse_special=True)]


def test_a_control_token_begins_calls(tokenizer: Tokenizer) -> None:
    written = pieces(tokenizer, 'I look.[TOOL_CALLS][{"name": "now", "arguments": {"a": "ü"}}]')
    assert "TOOL_CALLS" not in "".join(piece.text for piece in written)
    told = apart(tokenizer, MISTRAL, written, first=3)
    assert "".join(piece.text for piece in told) == "I look."
    assert [piece.id for piece in told] == [piece.id for piece in written]
    [call] = [call for piece in told for call in piece.calls]
    assert (call.name, call.arguments, call.id) == ("now", {"a": "ü"}, "call00003")
    assert told[-1].calls == (call,)


def test_calls_are_numbered_unless_the_model_does(tokenizer: Tokenizer) -> None:
    written = '[TOOL_CALLS][{"name": "now"}, {"name": "now", "id": "abcdefghi"}, {"name": "now"}]'
    told = apart(tokenizer, MISTRAL, pieces(tokenizer, written))
    assert [call.id for piece in told for call in piece.calls] == ["call00000", "abcdefghi", "call00002"]


def test_a_call_as_a_message(tokenizer: Tokenizer) -> None:
    [*_, last] = apart(tokenizer, HERMES, pieces(tokenizer, '<tool_call>{"name": "now"}</tool_call>'))
    assert last.calls[0].as_entry() == {
        "id": "call00000", "type": "function", "function": {"name": "now", "arguments": {}},
    }  # fmt: skip


def test_a_broken_call_is_a_warning_and_text(tokenizer: Tokenizer) -> None:
    written = 'So <tool_call>{"name": </tool_call>'
    with pytest.warns(UserWarning, match="cannot be read"):
        told = apart(tokenizer, HERMES, pieces(tokenizer, written))
    assert "".join(piece.text for piece in told) == written


def test_text_without_calls_is_what_it_was(tokenizer: Tokenizer) -> None:
    written = pieces(tokenizer, "  a <to b\n\n c <tool_cal \n")
    told = apart(tokenizer, HERMES, written)
    assert "".join(piece.text for piece in told) == "".join(piece.text for piece in written)
    assert [piece.id for piece in told] == [piece.id for piece in written]


def test_thoughts_are_left_alone(tokenizer: Tokenizer) -> None:
    thought = [Piece('<tool_call>{"name": "now"}</tool_call>', 1, "thought"), Piece("Yes", 2)]
    assert apart(tokenizer, HERMES, thought) == thought


def test_channels_become_thoughts_and_text(tokenizer: Tokenizer) -> None:
    written = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    told = [piece for piece in apart(tokenizer, HARMONY, pieces(tokenizer, written)) if piece.text]
    assert ["".join(piece.text for piece in told if piece.kind == kind) for kind in ("thought", "text")] == [
        "Hm.", "Yes.",
    ]  # fmt: skip


def test_headers_of_channels_are_tags(tokenizer: Tokenizer) -> None:
    """As gpt-oss has them: each mark is a token."""
    texts = ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>", "assistant",
             "<|channel|>", "final", "<|message|>", "Yes"]  # fmt: skip
    told = apart(tokenizer, HARMONY, [Piece(text, id) for id, text in enumerate(texts)])
    assert [piece.kind for piece in told] == [*["tag"] * 3, "thought", *["tag"] * 6, "text"]
    assert [piece.id for piece in told] == list(range(len(texts)))


def test_what_is_held_comes_before_the_end_of_the_context(tokenizer: Tokenizer) -> None:
    def full() -> Iterator[Piece]:
        yield from pieces(tokenizer, "Yes <tool")
        raise ContextOverflow("full")

    found = parser(HERMES, tokenizer, TOOLS)
    assert found
    run = told_apart(full(), found)
    n = len(pieces(tokenizer, "Yes <tool"))
    assert "".join(next(run).text for _ in range(n)) == "Yes <tool"
    with pytest.raises(ContextOverflow):
        next(run)


def test_the_run_ends_with_its_reader(tokenizer: Tokenizer) -> None:
    closed = []

    def endless() -> Iterator[Piece]:
        try:
            while True:
                yield Piece("a", 1)
        finally:
            closed.append(True)

    found = parser(HERMES, tokenizer, TOOLS)
    assert found
    run = told_apart(endless(), found)
    next(run)
    run.close()  # type: ignore[attr-defined]
    assert closed


def test_without_tools_only_channels_are_told_apart(tokenizer: Tokenizer) -> None:
    assert parser(HERMES, tokenizer) is None
    assert parser(HERMES, tokenizer, []) is None
    assert parser(HARMONY, tokenizer) is not None


def test_pushing_texts_without_tokens(tokenizer: Tokenizer) -> None:
    found = parser(HERMES, tokenizer, TOOLS)
    assert found
    parsed = found.push('Hi <tool_call>{"name": "now"}</tool_call>')
    assert (parsed.text, [call.name for call in parsed.calls]) == ("Hi", ["now"])
    assert found.finish() == Parsed()


def apart(tokenizer: Tokenizer, template: str, pieces: list[Piece], first: int = 0) -> list[Piece]:
    found = parser(template, tokenizer, TOOLS, first=first)
    assert found
    return list(told_apart((piece for piece in pieces), found))
