"""Guesses by a head of the model that predicts the token behind the next one (`localinfer.plan.ahead`), which may be in
a file of its own (`localinfer.plan.eagle3`).

It needs no model beside, and reads no text: it has taken in what the model has computed. Given its own guesses, it
guesses on.
"""

from time import perf_counter

from localinfer.engine.engine import Engine, Logits
from localinfer.engine.program import Floats
from localinfer.generation.speculation.draft import Draft
from localinfer.generation.speculation.pace import Pace

OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"


class Head(Draft):
    """As a draft model; its engine is that of the model itself."""

    def __init__(self, engine: Engine, pace: Pace) -> None:
        super().__init__(engine, pace, engine.n_vocab, share_of_head(engine))
        self._position = 0  # of the last guess
        self._state: Floats | None = None  # what that has become

    def _read_on(self) -> Logits:
        self._position, self._state = len(self._ids) - 1, None
        return self._further(self._ids[-1])

    def _behind(self, id: int) -> Logits:
        self._position += 1
        return self._further(id)

    def _pause(self) -> None:
        """The same engine goes on with what is guessed."""

    def _further(self, id: int) -> Logits:
        began = perf_counter()
        logits, self._state = self._engine.evaluate_further(id, self._position, self._state)
        self._pass.tell(perf_counter() - began)
        return logits


def share_of_head(engine: Engine) -> float:
    """What is read of the weights for a guess, as a part of what is read for a token."""
    blocks = engine.program.recorder.block_count
    sizes, *beside = ({name: tensor.nbytes for name, tensor in f.tensors.items()} for f in engine.program.files)
    within = sum(size for name, size in sizes.items() if name.startswith(f"blk.{blocks}."))
    head = sum(size for name, size in beside[0].items() if name != EMBEDDING) if beside else within
    output = 0 if beside and OUTPUT in beside[0] else sizes.get(OUTPUT, sizes[EMBEDDING])
    return (head + output) / (sum(sizes.values()) - within)
