"""What tests of guessed tokens share."""

from typing import Any

from localinfer import Model
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
