"""Tool-call parsing of pieces from a real tokenizer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_tokenizers import CONTROL, tiny_tokenizer, types_with

from localinfer.errors import ContextOverflowError
from localinfer.generation.pieces import NO_TOKEN, Piece, Stats
from localinfer.generation.result import GenerationResult
from localinfer.generation.tool_calls import ParseResult, answer_parser, parse_pieces
from localinfer.tokenizer import Tokenizer

TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {}}}]
MISTRAL, HARMONY, HERMES = "{{ '[TOOL_CALLS]' }}", "<|start|><|channel|>final<|message|>", "<tool_call>"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """Open a tokenizer in which [TOOL_CALLS] is a control token without text, as in Mistral's, and <|channel|> has a
    name."""
    from tiny import bpe_vocabulary

    spare = [name for name in bpe_vocabulary()["tokenizer.ggml.tokens"].value if name.startswith("<|")][:1]
    types = types_with("bpe", {spare[0]: CONTROL})
    return tiny_tokenizer(tmp_path / "tiny.gguf", "bpe", {spare[0]: "[TOOL_CALLS]"}, token_type=types)


def pieces(tokenizer: Tokenizer, text: str) -> list[Piece]:
    stream = tokenizer.stream()
    return [Piece(stream.push(id), id) for id in tokenizer.encode(text, add_special=False, parse_special=True)]


def test_control_token_begins_calls(tokenizer: Tokenizer) -> None:
    written = pieces(tokenizer, 'I look.[TOOL_CALLS][{"name": "now", "arguments": {"a": "ü"}}]')
    assert "TOOL_CALLS" not in "".join(piece.text for piece in written)
    parsed_pieces = parse(tokenizer, MISTRAL, written, first=3)
    assert "".join(piece.text for piece in parsed_pieces) == "I look."
    assert [piece.id for piece in parsed_pieces] == [piece.id for piece in written]
    [call] = [call for piece in parsed_pieces for call in piece.calls]
    assert (call.name, call.arguments, call.id) == ("now", {"a": "ü"}, "call00003")
    assert parsed_pieces[-1].calls == (call,)


def test_calls_without_an_id_are_numbered(tokenizer: Tokenizer) -> None:
    written = '[TOOL_CALLS][{"name": "now"}, {"name": "now", "id": "abcdefghi"}, {"name": "now"}]'
    parsed_pieces = parse(tokenizer, MISTRAL, pieces(tokenizer, written))
    assert [call.id for piece in parsed_pieces for call in piece.calls] == ["call00000", "abcdefghi", "call00002"]


def test_call_as_message_entry(tokenizer: Tokenizer) -> None:
    [*_, last] = parse(tokenizer, HERMES, pieces(tokenizer, '<tool_call>{"name": "now"}</tool_call>'))
    assert last.calls[0].as_entry() == {
        "id": "call00000", "type": "function", "function": {"name": "now", "arguments": {}},
    }  # fmt: skip


def test_invalid_call_becomes_text_with_a_warning(tokenizer: Tokenizer) -> None:
    written = 'So <tool_call>{"name": </tool_call>'
    with pytest.warns(UserWarning, match="cannot be parsed"):
        parsed_pieces = parse(tokenizer, HERMES, pieces(tokenizer, written))
    assert "".join(piece.text for piece in parsed_pieces) == written


def test_text_without_calls_is_unchanged(tokenizer: Tokenizer) -> None:
    written = pieces(tokenizer, "  a <to b\n\n c <tool_cal \n")
    parsed_pieces = parse(tokenizer, HERMES, written)
    assert "".join(piece.text for piece in parsed_pieces) == "".join(piece.text for piece in written)
    assert [piece.id for piece in parsed_pieces] == [piece.id for piece in written]


def test_calls_in_reasoning_are_not_parsed(tokenizer: Tokenizer) -> None:
    texts = ["<think>", 'Hm <tool_call>{"name": "now"}</tool_call> ', "so", "</think>", "\n", "Yes"]
    parsed_pieces = parse(tokenizer, HERMES + "<think>", [Piece(text, id) for id, text in enumerate(texts)])
    assert [each for each in parsed_pieces if each.text] == [
        Piece("Hm ", 1, "reasoning"), Piece('<tool_call>{"name": "now"}</tool_call> so', 3, "reasoning"),
        Piece("Yes", 5),
    ]  # fmt: skip


def test_token_that_ends_reasoning_and_begins_the_answer(tokenizer: Tokenizer) -> None:
    parsed_pieces = parse(tokenizer, HERMES + "<think>", [Piece("<think>", 1), Piece("so</think>Yes", 2)])
    assert parsed_pieces[1:] == [Piece("so", 2, "reasoning"), Piece("Yes", NO_TOKEN)]
    result = GenerationResult.from_pieces(parsed_pieces, Stats())
    assert (result.reasoning, result.text, result.tokens, result.answer_start) == ("so", "Yes", [1, 2], 2)


def test_tags_that_are_control_tokens(tmp_path: Path) -> None:
    from tiny import bpe_vocabulary

    names = [name for name in bpe_vocabulary()["tokenizer.ggml.tokens"].value if name.startswith("<|")][:2]
    types = types_with("bpe", dict.fromkeys(names, CONTROL))
    texts = dict(zip(names, ("<|channel>", "<channel|>"), strict=True))
    tokenizer = tiny_tokenizer(tmp_path / "gemma.gguf", "bpe", texts, token_type=types)
    written = pieces(tokenizer, "<|channel>thought\nHm.<channel|>Yes.")
    assert "channel" not in "".join(piece.text for piece in written)
    parser = answer_parser("<|tool_call>call: <|channel>", tokenizer)
    result = GenerationResult.from_pieces(list(parse_pieces((piece for piece in written), parser)), Stats())
    assert (result.reasoning, result.text) == ("Hm.", "Yes.")
    assert result.tokens == [piece.id for piece in written]
    parser = answer_parser("<|tool_call>call: <|channel>", tokenizer, with_reasoning=False)
    merged = list(parse_pieces((piece for piece in written), parser))
    assert "".join(piece.text for piece in merged) == "<|channel>thought\nHm.<channel|>Yes."


def test_channels_become_reasoning_and_text(tokenizer: Tokenizer) -> None:
    written = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    parsed_pieces = [piece for piece in parse(tokenizer, HARMONY, pieces(tokenizer, written)) if piece.text]
    assert ["".join(piece.text for piece in parsed_pieces if piece.kind == kind) for kind in ("reasoning", "text")] == [
        "Hm.", "Yes.",
    ]  # fmt: skip


def test_channel_headers_are_tags(tokenizer: Tokenizer) -> None:
    """As in gpt-oss, each control token is one token."""
    texts = ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>", "assistant",
             "<|channel|>", "final", "<|message|>", "Yes"]  # fmt: skip
    parsed_pieces = parse(tokenizer, HARMONY, [Piece(text, id) for id, text in enumerate(texts)])
    assert [piece.kind for piece in parsed_pieces] == [*["tag"] * 3, "reasoning", *["tag"] * 6, "text"]
    assert [piece.id for piece in parsed_pieces] == list(range(len(texts)))


def test_held_text_is_yielded_before_a_context_overflow(tokenizer: Tokenizer) -> None:
    def full() -> Iterator[Piece]:
        yield from pieces(tokenizer, "Yes <tool")
        raise ContextOverflowError("full")

    actual = answer_parser(HERMES, tokenizer, TOOLS)

    run = parse_pieces(full(), actual)
    n = len(pieces(tokenizer, "Yes <tool"))
    assert "".join(next(run).text for _ in range(n)) == "Yes <tool"
    with pytest.raises(ContextOverflowError):
        next(run)


def test_closing_the_parsed_run_closes_the_run(tokenizer: Tokenizer) -> None:
    closings = []

    def endless() -> Iterator[Piece]:
        try:
            while True:
                yield Piece("a", 1)
        finally:
            closings.append(True)

    actual = answer_parser(HERMES, tokenizer, TOOLS)

    run = parse_pieces(endless(), actual)
    next(run)
    run.close()  # type: ignore[attr-defined]
    assert closings


def test_without_tools_calls_are_text(tokenizer: Tokenizer) -> None:
    written = '<tool_call>{"name": "now"}</tool_call> \n'
    for tools in None, []:
        parser = answer_parser(HERMES, tokenizer, tools)
        assert parser.push(written) == ParseResult(written)


def test_push_of_text_without_tokens(tokenizer: Tokenizer) -> None:
    actual = answer_parser(HERMES, tokenizer, TOOLS)

    parsed = actual.push('Hi <tool_call>{"name": "now"}</tool_call>')
    assert (parsed.text, [call.name for call in parsed.calls]) == ("Hi", ["now"])
    assert actual.finish() == ParseResult()


def parse(tokenizer: Tokenizer, template: str, pieces: list[Piece], first: int = 0) -> list[Piece]:
    actual = answer_parser(template, tokenizer, TOOLS, first_number=first)

    return list(parse_pieces((piece for piece in pieces), actual))
