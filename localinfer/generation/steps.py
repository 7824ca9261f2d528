"""The steps of one run behind its prompt: which tokens are computed, and which pieces are chosen by their logits.

Where several runs are computed together, the thread that does so takes steps before the run's own thread asks for them:
what it does with a piece is done while the next one is being computed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from localinfer.engine.engine import Ask, Engine, Logits
from localinfer.generation.choosing import Choose
from localinfer.generation.pieces import Piece

if TYPE_CHECKING:
    from localinfer.generation.speculation.speculation import Speculation


class Steps:
    """An `engine.Course`. `room` says how many pieces there may be yet behind so many. With `alone` the run's own
    thread chooses: where that takes long, or calls a sampler of the user's."""

    def __init__(
        self, engine: Engine, choose: Choose, is_last: Callable[[Piece], bool], room: Callable[[int], int], *,
        alone: bool,
    ) -> None:  # fmt: skip
        self.speculation: Speculation | None = None
        self._engine, self._choose, self._is_last, self._room = engine, choose, is_last, room
        self._alone = alone
        self._chosen = 0  # how many pieces were; `_last` is the last one of them
        self._last = Piece("", 0)
        self._steps = deque[list[Piece]]()  # pieces that nobody has asked for yet

    def first(self, logits: Logits) -> Piece:
        """The piece behind the prompt."""
        self._taken([self._choose(logits, self._engine.sequence.tokens)])
        return self._last

    def pieces(self) -> list[Piece]:
        """The pieces of the next step, at least one; there must be room for it."""
        if self._alone or (self.speculation is not None and not self.speculation.is_quick):
            self.take(self._engine.evaluate_guesses(*self.ask()))
        else:
            self._engine.follow(self)
        return self._steps.popleft()

    def ask(self) -> Ask:
        if self.speculation is None:
            return Ask([self._last.id])
        return self.speculation.ask(self._last.id, self._room(self._chosen))

    def take(self, logits: Logits) -> bool:
        if self.speculation is None:
            pieces = [self._choose(logits[0], self._engine.sequence.tokens)]
        else:
            pieces = self.speculation.judged(logits, self._choose, self._is_last)
        self._taken(pieces)
        self._steps.append(pieces)
        return not self._is_last(self._last) and self._room(self._chosen) > 0

    def _taken(self, pieces: Sequence[Piece]) -> None:
        self._chosen += len(pieces)
        self._last = pieces[-1]
