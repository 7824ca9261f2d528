"""The guesses of one run, and what becomes of them.

A pass over [the last token, guess, guess, ...] gives the logits after each of them. They go to the run's own chooser,
one row after the other, as if each had come alone: as long as it chooses the token that was guessed, the next row is
the right one, too. Where it chooses another one, that one counts, and the model forgets the guesses behind it. A model
whose past is a state may forget some of the right ones as well: these go through the next pass once more, in front.

So the text is the one that comes without guesses: every token is chosen by the same logits, to the last bit, and by the
same random numbers in the same order, whoever guessed, and whatever sampler or form the run has.

A guess x comes true when x is drawn, with the probability p(x) that the sampler leaves it. That is also how often the
scheme of Leviathan et al. (2023) accepts one that is certain: with min(1, p(x) / q(x)), where q(x) = 1. It accepts more
only of guesses that are drawn from a draft model's q themselves, the sum of min(p, q) over all tokens instead of p at
q's maximum; but then the text that belongs to a seed is another one with every draft. Here it is the same with all.
llama.cpp compares what is drawn, too.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import zip_longest
from time import perf_counter
from typing import Protocol

from localinfer.engine.engine import Ask, Engine, Logits
from localinfer.generation.choosing import Choose
from localinfer.generation.pieces import Piece, Stats
from localinfer.generation.speculation.draft import Draft
from localinfer.generation.speculation.head import Head
from localinfer.generation.speculation.lookup import Lookup
from localinfer.generation.speculation.pace import Pace
from localinfer.options import Options


class Guesser(Protocol):
    """Guesses what follows a text that it is told of token by token. One that `is_quick` computes nothing for it."""

    is_quick: bool

    def read(self, ids: Iterable[int]) -> None:
        """The prompt."""

    def follow(self, id: int) -> None:
        """The next token."""

    def promise(self, fewest: int, most: int) -> float:
        """How many times as fast it may become with guesses that are made now: so many of them. 1 is without any."""

    def guesses(self) -> Sequence[int]:
        """Those of the last promise."""


class Speculation:
    """Goes through one run beside it. Of `guessers` the one that promises most makes guesses; `pace` is what is known
    of the model, and becomes better known."""

    def __init__(
        self, engine: Engine, guessers: Sequence[Guesser], pace: Pace, stats: Stats, *, fewest: int, most: int
    ) -> None:
        self._engine, self._guessers, self._pace, self._stats = engine, guessers, pace, stats
        self._fewest, self._most = fewest, min(most, engine.at_once - 1)
        self._again: list[int] = []  # tokens of the text that the model has forgotten with the guesses behind them
        self._tokens: list[int] = []  # of the text, up to what was asked last
        self._guessed: Sequence[int] = ()  # behind them
        self._began = self._asked = 0.0
        self._seconds = self._seconds_without = 0.0

    def read(self, ids: Sequence[int]) -> None:
        """The prompt."""
        for guesser in self._guessers:
            guesser.read(ids)

    @property
    def is_quick(self) -> bool:
        """Whether guesses cost next to nothing, whoever waits for them."""
        return all(each.is_quick for each in self._guessers)

    def ask(self, id: int, room: int) -> Ask:
        """The token `id`, which was chosen last, with what the model has forgotten before it, and the guesses behind
        it: so many that at most `room` pieces come of them."""
        self._follow(id)
        self._began = perf_counter()
        again = self._again
        self._guessed = self._guesses(min(self._most - len(again), room - 1))
        self._tokens = [*self._engine.sequence.tokens, *again, id]
        self._asked = perf_counter()
        return Ask([*again, id, *self._guessed], skip=len(again))

    def judged(self, rows: Logits, choose: Choose, is_last: Callable[[Piece], bool]) -> list[Piece]:
        """The pieces behind what was asked last, at least one, by the logits after the token and after each guess."""
        ended = perf_counter()
        guesses, tokens, again = self._guessed, self._tokens, self._again
        pieces: list[Piece] = []
        try:
            for row, guess in zip_longest(rows, guesses):
                pieces.append(choose(row, tokens))
                if pieces[-1].id != guess or is_last(pieces[-1]):
                    break
                tokens.append(guess)
        finally:
            self._again = tokens[self._engine.rewind(len(tokens)) :]
        for piece in pieces[:-1]:
            self._follow(piece.id)
        self._pace.cost.tell(len(again) + 1 + len(guesses), ended - self._asked)
        if (right := len(pieces) - 1) < len(guesses):
            self._pace.tell(right, len(self._again))
        self._seconds += ended - self._began
        self._stats.drafted_tokens += len(guesses)
        return pieces

    def give(self, *, guessed: bool) -> None:
        """A piece is given; what stands behind a stop text never is, and nothing was gained by it."""
        if not self._seconds:  # the first one comes with the prompt
            return
        self._seconds_without += self._pace.cost.one
        self._stats.accepted_tokens += guessed
        self._stats.gain = self._seconds_without / self._seconds

    def _guesses(self, most: int) -> Sequence[int]:
        if not self._pace.cost.one:  # what one token takes is to be measured first
            return ()
        gain, number = max((each.promise(self._fewest, most), -n) for n, each in enumerate(self._guessers))
        return self._guessers[-number].guesses() if gain > 1 else ()

    def _follow(self, id: int) -> None:
        for guesser in self._guessers:
            guesser.follow(id)


class Guessing:
    """What is known of a model, and of its draft model if it has one, from run to run."""

    def __init__(self, engine: Engine, draft: Engine | None) -> None:
        self._engine = engine
        self._pace = Pace()
        self._draft = Draft(draft, self._pace, engine.n_vocab, share=nbytes(draft) / nbytes(engine)) if draft else None
        self._head = Head(engine, self._pace) if engine.looks_further else None

    def begin(self, tokens: Sequence[int], names: Collection[str], options: Options, stats: Stats) -> Speculation:
        """The guesses of a run behind these tokens. `names` say who makes them: ngram, draft, ahead."""
        guessers: list[Guesser] = [Lookup(self._pace)] if "ngram" in names else []
        for name, model in (("draft", self._draft), ("ahead", self._head)):
            if model and name in names:
                model.p_min = options.spec_draft_p_min
                guessers.append(model)
        fewest, most = options.spec_draft_n_min, options.spec_draft_n_max
        speculation = Speculation(self._engine, guessers, self._pace, stats, fewest=fewest, most=most)
        speculation.read(tokens)
        return speculation


def nbytes(engine: Engine) -> int:
    """What is read of the weights in a pass, and some more."""
    return sum(tensor.nbytes for tensor in engine.file.tensors.values())
