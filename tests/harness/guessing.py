"""What tests of guessed tokens share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from localinfer import Model
from localinfer.engine.engine import Engine, Segment
from localinfer.generation.speculation.pace import Cost, Pace

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
LIVELY: dict[str, Any] = {"temp": 1.5, "top_k": 0, "min_p": 0.0, "seed": 7}


class Cheap(Cost):
    """Passes take so long that guesses cost nothing, and several tokens little more than one."""

    one, more = 1.0, 0.01

    def tell(self, tokens: int, seconds: float) -> None:
        pass

    def ratio(self, tokens: int) -> float:
        return 1 + self.more * tokens


def pace() -> Pace:
    known = Pace()
    known.cost = Cheap()
    return known


def ids_of(model: Model, **options: Any) -> list[int]:
    model.engine.reset()
    return [piece.id for piece in model.generate(PROMPT, **options)]


def looks_are_apart(engine: Engine, ids: Sequence[int]) -> None:
    """A head sees the past of the sequence for which it guesses, also where two were computed together."""
    alone = []
    for first in (0, 20):
        engine.reset()
        engine.evaluate(ids[first : first + 30])
        alone.append(engine.evaluate_further(ids[50], 30)[0].copy())
    engine.reset()
    a, b = engine.begin(), engine.begin()
    for part in (slice(0, 13), slice(13, 14), slice(14, 30)):
        texts = ids[:30][part], ids[20:50][part]
        engine.compute([Segment(s, np.array(text, np.int32)) for s, text in zip((a, b), texts, strict=True)])
    for sequence, expected in zip((a, b), alone, strict=True):
        engine.sequence = sequence.fork()
        np.testing.assert_array_equal(engine.evaluate_further(ids[50], 30)[0], expected)
        engine.sequence.reset()
