"""The stop string filter: stop strings that span tokens, and incomplete characters."""

import random

import pytest

from localinfer.generation.pieces import Piece, StopStringFilter


def filtered(texts: list[str], stops: list[str], remaining: str = "") -> tuple[list[list[str]], list[str], bool]:
    """Return the pieces released after each token, those at the end, and whether a stop string was found."""
    filter_, shown = StopStringFilter(stops), []
    for id, text in enumerate(texts):
        shown.append([piece.text for piece in filter_.push(Piece(text, id), is_incomplete=False)])
        if filter_.found:
            return shown, [], True
    return shown, [piece.text for piece in filter_.flush(remaining)], False


@pytest.mark.parametrize(
    ("texts", "stops", "shown", "end", "stopped"),
    [
        (["a", "b"], [], [["a"], ["b"]], [], False),
        (["a", "", "b"], [], [["a"], [""], ["b"]], [], False),
        (["a", "STOP", "b"], ["STOP"], [["a"], []], [], True),
        (["a", "bSTOPc"], ["STOP"], [["a"], ["b"]], [], True),
        (["a", "bST", "OP"], ["STOP"], [["a"], [], ["b"]], [], True),
        (["a", "bST", "Op"], ["STOP"], [["a"], [], ["bST", "Op"]], [], False),
        (["S", "T", "O", "P"], ["STOP"], [[], [], [], []], [], True),
        (["S", "T", "O"], ["STOP"], [[], [], []], ["S", "T", "O"], False),
        (["aS", "S", "TOP"], ["STOP"], [[], ["aS"], []], [], True),
        (["ab", "ab", "abc"], ["ababc"], [[], [], ["ab"]], [], True),
        (["x", "one", "two"], ["two", "on"], [["x"], []], [], True),  # the earliest one in the text ends it
        (["one two"], ["two", "one"], [[]], [], True),
        (["a\n", "\nb"], ["\n\n"], [[], ["a"]], [], True),
    ],
)
def test_stop_strings(
    texts: list[str], stops: list[str], shown: list[list[str]], end: list[str], stopped: bool
) -> None:
    assert filtered(texts, stops) == (shown, end, stopped)


def test_piece_is_held_until_its_character_is_complete() -> None:
    filter_ = StopStringFilter([])
    assert filter_.push(Piece("a", 1), is_incomplete=True) == []
    assert filter_.push(Piece("", 2), is_incomplete=True) == [Piece("a", 1)]
    assert filter_.push(Piece("é", 3), is_incomplete=False) == [Piece("", 2), Piece("é", 3)]
    assert filter_.push(Piece("b", 4), is_incomplete=True) == []
    assert filter_.flush("\ufffd") == [Piece("b\ufffd", 4)]


def test_flush_without_tokens_returns_nothing() -> None:
    assert StopStringFilter(["x"]).flush() == []


def test_result_is_independent_of_tokenization() -> None:
    draws = random.Random(0)
    for _ in range(500):
        text = "".join(draws.choice("ab\n") for _ in range(draws.randrange(1, 12)))
        stops = ["".join(draws.choice("ab\n") for _ in range(draws.randrange(1, 5))) for _ in range(2)]
        boundaries = sorted(draws.randrange(len(text) + 1) for _ in range(4))
        tokens = [text[start:end] for start, end in zip([0, *boundaries], [*boundaries, len(text)], strict=True)]
        filter_, pieces, observed = StopStringFilter(stops), [], ""
        for id, token in enumerate(tokens):
            pieces += filter_.push(Piece(token, id), is_incomplete=False)
            observed += token
            if filter_.found:
                break
        pieces += filter_.flush()
        positions = [observed.find(stop) for stop in stops if stop in observed]
        assert bool(filter_.found) == any(stop in text for stop in stops)
        assert "".join(piece.text for piece in pieces) == observed[: min(positions, default=len(observed))]
        assert [piece.id for piece in pieces] == list(range(len(pieces)))
