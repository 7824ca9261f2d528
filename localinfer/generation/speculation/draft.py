"""Guesses by a smaller model with the same vocabulary: what it finds most probable.

It reads the same text, some tokens behind, and forgets what it has guessed where that was wrong. How often its guesses
come true depends on how probable it finds them itself: that is counted for each tenth of its probabilities. It goes on
for as long as one more guess brings more tokens than could be made otherwise in the time that it takes.
"""

from collections.abc import Iterable
from itertools import repeat
from time import perf_counter

import numpy as np

from localinfer.engine.engine import Engine, Logits
from localinfer.generation.speculation.pace import Middle, Pace

KINDS = 10  # of probabilities: how often a guess comes true that is so probable to the draft model
HOPE = 0.9  # is how often any does, until it was seen: it must be tried
SOME = 4.0  # guesses count as seen beforehand
FADING = 0.97  # how much of what happened before still counts when another guess was made
FORGETTING = 0.99  # and where none was: what did not pay is tried again some time


class Share:
    """How often something came true lately; `usual` as long as little is known."""

    def __init__(self, usual: float) -> None:
        self._usual = usual
        self._came_true, self._made = SOME * usual, SOME

    @property
    def value(self) -> float:
        return self._came_true / self._made

    def tell(self, *, came_true: bool) -> None:
        self._came_true = self._came_true * FADING + came_true
        self._made = self._made * FADING + 1

    def forget(self) -> None:
        self._came_true += (1 - FORGETTING) * (SOME * self._usual - self._came_true)
        self._made += (1 - FORGETTING) * (SOME - self._made)


class Draft:
    """A model that guesses tokens of another one, whose `pace` it is. It outlives a run: its engine remembers texts."""

    is_quick = False

    def __init__(self, engine: Engine, pace: Pace, n_vocab: int, share: float) -> None:
        """The other one knows `n_vocab` tokens; a pass here takes this `share` of one there until it was measured."""
        self._engine, self._pace, self._n_vocab, self._share = engine, pace, n_vocab, share
        self.p_min = 0.0  # less probable tokens are not guessed
        self._pass = Middle()
        self._ids: list[int] = []
        self._agreed = 0  # tokens that are the same in the engine's sequence
        self._guessed: list[tuple[int, int]] = []  # what has not been followed by what came, with its kind
        self._all, self._of_kind = Share(HOPE), [Share((kind + 0.5) / KINDS) for kind in range(KINDS)]
        self._fewest = self._most = 0
        self._gain = 1.0

    def read(self, ids: Iterable[int]) -> None:
        self._ids, self._agreed, self._guessed = [*ids], 0, []

    def follow(self, id: int) -> None:
        self._ids.append(id)
        if self._guessed:
            (guess, kind), *behind = self._guessed
            for share in (self._all, self._of_kind[kind]):
                share.tell(came_true=guess == id)
            self._guessed = behind if guess == id else []
        else:
            self._all.forget()

    def promise(self, fewest: int, most: int) -> float:
        room = self._engine.n_ctx - len(self._ids)
        self._fewest, self._most = fewest, min(most, room) if not self._engine.wraps else most
        _, self._gain = self._pace.best(repeat(self._all.value), fewest, self._most, self._each)
        return self._gain

    def guesses(self) -> list[int]:
        chance, more = self._all.value, self._pace.cost.more
        all_true, logits = 1.0, self._read_on()
        self._guessed = []
        while True:
            id = int(logits.argmax())
            probability = 1 / float(np.exp(logits - logits[id]).sum())
            kind = min(int(probability * KINDS), KINDS - 1)
            all_true *= self._of_kind[kind].value
            enough = len(self._guessed) >= self._fewest
            if probability < self.p_min or (enough and all_true < self._gain * more):
                break
            self._guessed.append((id, kind))
            enough = len(self._guessed) >= self._fewest
            if len(self._guessed) == self._most or (enough and all_true * chance < self._gain * (more + self._each)):
                break
            logits = self._behind(id)
        self._pause()
        if len(self._guessed) < self._fewest:
            self._guessed = []
        return [id for id, _ in self._guessed]

    @property
    def _each(self) -> float:
        """What a guess takes, as a part of a pass of the other model for one token."""
        return self._pass.value / self._pace.cost.one if self._pass.value else self._share

    def _read_on(self) -> Logits:
        """The logits after all that there is."""
        held, ids = self._engine.sequence.tokens, self._ids
        end = min(len(held), len(ids) - 1)
        agreed = next((n for n in range(min(self._agreed, end), end) if held[n] != ids[n]), end)
        self._agreed = len(ids)
        logits = self._logits(ids[self._engine.rewind(agreed) :])
        self._engine.sequence.guess(0)
        return logits

    def _behind(self, id: int) -> Logits:
        """The logits after one more guess."""
        return self._logits([id])

    def _pause(self) -> None:
        """There are no more guesses for now."""
        self._engine.pause()

    def _logits(self, ids: list[int]) -> Logits:
        began = perf_counter()
        logits = self._engine.evaluate(ids)[: self._n_vocab]
        if len(ids) == 1:
            self._pass.tell(perf_counter() - began)
        return logits
