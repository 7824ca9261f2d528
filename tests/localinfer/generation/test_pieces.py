"""The outlet: which pieces may go out when, stop texts that span tokens, characters that are not finished."""

import random

import pytest

from localinfer.generation.pieces import Outlet, Piece


def let_out(texts: list[str], stops: list[str], rest: str = "") -> tuple[list[list[str]], list[str], bool]:
    """What goes out after each token, what goes out at the end, and whether a stop text was found."""
    outlet, shown = Outlet(stops), []
    for id, text in enumerate(texts):
        shown.append([piece.text for piece in outlet.push(Piece(text, id), unfinished=False)])
        if outlet.stopped:
            return shown, [], True
    return shown, [piece.text for piece in outlet.flush(rest)], False


@pytest.mark.parametrize(("texts", "stops", "shown", "end", "stopped"), [
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
    (["x", "one", "two"], ["two", "on"], [["x"], []], [], True),  # the first place counts, not the first stop
    (["one two"], ["two", "one"], [[]], [], True),
    (["a\n", "\nb"], ["\n\n"], [[], ["a"]], [], True),
])
def test_stop_texts(
    texts: list[str], stops: list[str], shown: list[list[str]], end: list[str], stopped: bool
) -> None:
    assert let_out(texts, stops) == (shown, end, stopped)


def test_a_piece_waits_for_the_end_of_its_character() -> None:
    outlet = Outlet([])
    assert outlet.push(Piece("a", 1), unfinished=True) == []
    assert outlet.push(Piece("", 2), unfinished=True) == [Piece("a", 1)]
    assert outlet.push(Piece("é", 3), unfinished=False) == [Piece("", 2), Piece("é", 3)]
    assert outlet.push(Piece("b", 4), unfinished=True) == []
    assert outlet.flush("\ufffd") == [Piece("b\ufffd", 4)]


def test_nothing_is_held_at_the_end_of_nothing() -> None:
    assert Outlet(["x"]).flush() == []


def test_any_cut_of_a_text_gives_the_same_text_and_each_token_once() -> None:
    draws = random.Random(0)
    for _ in range(500):
        text = "".join(draws.choice("ab\n") for _ in range(draws.randrange(1, 12)))
        stops = ["".join(draws.choice("ab\n") for _ in range(draws.randrange(1, 5))) for _ in range(2)]
        cuts = sorted(draws.randrange(len(text) + 1) for _ in range(4))
        tokens = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        outlet, pieces, seen = Outlet(stops), [], ""
        for id, token in enumerate(tokens):
            pieces += outlet.push(Piece(token, id), unfinished=False)
            seen += token
            if outlet.stopped:
                break
        pieces += outlet.flush()
        places = [seen.find(stop) for stop in stops if stop in seen]
        assert outlet.stopped == any(stop in text for stop in stops)
        assert "".join(piece.text for piece in pieces) == seen[: min(places, default=len(seen))]
        assert [piece.id for piece in pieces] == list(range(len(pieces)))
