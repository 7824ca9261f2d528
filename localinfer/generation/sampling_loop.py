"""The decode loop of one run: the tokens that each step evaluates, and the pieces that its logits yield.

The scheduler thread may process a step before the run's own thread requests it. The run's thread then handles a piece
while the next one is being computed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from localinfer.generation.pieces import Piece
from localinfer.generation.token_selection import SelectPiece
from localinfer.runtime.batch import Logits
from localinfer.runtime.decode_loop import StepInput
from localinfer.runtime.sequence_engine import SequenceEngine

if TYPE_CHECKING:
    from localinfer.generation.speculative.speculative_decoder import SpeculativeRun


class SamplingLoop:
    """A `DecodeLoop` that samples the next token, or verifies draft tokens.

    `remaining` returns how many pieces may follow a number of pieces. With `is_synchronous` the run's own thread
    selects the tokens, for selectors that are slow or call a user's sampler.
    """

    def __init__(
        self,
        engine: SequenceEngine,
        choose: SelectPiece,
        is_last: Callable[[Piece], bool],
        remaining: Callable[[int], int],
        *,
        is_synchronous: bool,
    ) -> None:
        self.speculation: SpeculativeRun | None = None
        self._engine, self._choose, self._is_last, self._remaining = engine, choose, is_last, remaining
        self._is_synchronous = is_synchronous
        self._n_pieces = 0  # number of selected pieces; `_last` is the last one
        self._last = Piece("", 0)
        self._finished_steps = deque[list[Piece]]()  # steps that have not been requested yet

    def first(self, logits: Logits) -> Piece:
        """Return the piece after the prompt."""
        self._record([self._choose(logits, self._engine.sequence.tokens)])
        return self._last

    def next_pieces(self) -> list[Piece]:
        """Return the pieces of the next step, at least one. The caller checks that more pieces are allowed."""
        if self._is_synchronous or (self.speculation is not None and not self.speculation.is_cheap):
            self.process_logits(self._engine.evaluate_draft(*self.next_tokens()))
        else:
            self._engine.run_step(self)
        return self._finished_steps.popleft()

    def next_tokens(self) -> StepInput:
        """Return the tokens of the next step: the last token and draft tokens."""
        if self.speculation is None:
            return StepInput([self._last.id])
        return self.speculation.next_tokens(self._last.id, self._remaining(self._n_pieces))

    def process_logits(self, logits: Logits) -> bool:
        """Select the pieces of a step by its logits. Return whether there is certainly a next step."""
        if self.speculation is None:
            pieces = [self._choose(logits[0], self._engine.sequence.tokens)]
        else:
            pieces = self.speculation.verify(logits, self._choose, self._is_last)
        self._record(pieces)
        self._finished_steps.append(pieces)
        return not self._is_last(self._last) and self._remaining(self._n_pieces) > 0

    def _record(self, pieces: Sequence[Piece]) -> None:
        self._n_pieces += len(pieces)
        self._last = pieces[-1]
