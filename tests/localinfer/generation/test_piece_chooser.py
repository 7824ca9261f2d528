"""The limits of a run, and how many tokens are left when a piece is chosen."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from localinfer.generation.piece_chooser import PieceChooser, RunLimits
from localinfer.generation.pieces import Piece


@pytest.mark.parametrize(
    ("limits", "maximum", "remaining"),
    [
        (RunLimits(-1, 10, 16, uses_ring_buffer=False), 7, 4),  # the last token is not evaluated
        (RunLimits(5, 10, 16, uses_ring_buffer=False), 5, 2),
        (RunLimits(9, 10, 16, uses_ring_buffer=False), 7, 4),
        (RunLimits(5, 10, 16, uses_ring_buffer=True), 5, 2),
        (RunLimits(-1, 10, 16, uses_ring_buffer=True), None, 16),
    ],
)
def test_limits(limits: RunLimits, maximum: int | None, remaining: int) -> None:
    assert limits.maximum == maximum
    assert limits.remaining(3) == remaining
    assert maximum is None or limits.remaining(maximum) == 0


class Reasoning:
    """The first two tokens are reasoning."""

    kind, forced = "reasoning", None

    def __init__(self) -> None:
        self.ids: list[int] = []

    def accept(self, id: int) -> None:
        self.ids.append(id)
        self.kind = "reasoning" if len(self.ids) < 3 else "text"


class Selector:
    """Selects the number of tokens that are left, or 99."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.is_complete = False

    def accept(self, id: int) -> None:
        self.accepted.append(id)

    def __call__(self, logits: object, tokens: Sequence[int], forced: None, n_left: int | None) -> Piece:
        return Piece("", 99 if n_left is None else n_left)


@pytest.mark.parametrize(("closes", "ids"), [(True, [3, 2]), (False, [99, 99])])
def test_pieces(closes: bool, ids: list[int]) -> None:
    reasoning: Any = Reasoning()
    selector: Any = Selector()
    limits = RunLimits(5, 10, 64, uses_ring_buffer=False)
    chooser = PieceChooser(selector, reasoning, {99}, limits, 1, closes_at_limit=closes)
    assert chooser.accept([7]) == [Piece("", 7, "reasoning")]
    chosen = [chooser.choose(np.zeros(1, np.float32), []) for _ in ids]
    assert [piece.id for piece in chosen] == ids
    assert [piece.kind for piece in chosen] == ["reasoning", "text"]
    assert (selector.accepted, reasoning.ids) == ([7], [7, *ids])
    assert chooser.is_last(chosen[-1]) == (not closes)
    selector.is_complete = True
    assert chooser.is_last(chosen[0])
