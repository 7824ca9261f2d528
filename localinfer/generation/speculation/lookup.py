"""Guesses without a model: what followed the last tokens when they stood in the text before follows them again.

Texts that are rewritten, quoted or filled into a form stand in the prompt in long stretches (LLMA; Yang et al., 2023).
One is found as deflate finds repetitions: the places where the same few tokens end are a chain, the latest first, of
which some are looked at. While what was found goes on to come true nothing needs to be searched: following a text takes
linear time.
"""

from collections.abc import Iterable, Iterator

from localinfer.generation.speculation.pace import Pace

SHORTEST = 2  # tokens that must be the same
CANDIDATES = 16  # places that are looked at
LONG_ENOUGH = 32  # tokens: of two stretches that are longer the later one counts


class Lookup:
    """Follows a text, token by token. `length` last tokens stood in it before: what followed them is the guess.

    Whether a guess of one token would have come true is kept in the record of `pace`, also of those that nobody has
    made: what guesses are worth is known before the first one, and whenever it changes.
    """

    is_quick = True

    def __init__(self, pace: Pace) -> None:
        self.length = 0
        self._pace = pace
        self._count = 0  # guesses that were promised
        self._at = 0  # what followed them begins here
        self._ids: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}  # behind which place the same tokens were seen last
        self._before: list[int] = []  # for each place the one where they were seen before that, or 0

    def read(self, ids: Iterable[int]) -> None:
        """Tokens that nobody guesses: the prompt."""
        for id in ids:
            self._append(id)
        self._search()

    def follow(self, id: int) -> None:
        """The next token of the text."""
        came_true = False
        if self.length:
            came_true = self._ids[self._at] == id
            self._pace.record.tell(self.length, came_true)
        self._append(id)
        if came_true:
            self.length, self._at = self.length + 1, self._at + 1
        else:
            self._search()

    def promise(self, fewest: int, most: int) -> float:
        self._count, gain = self._pace.best(self._chances(), fewest, most)
        return gain

    def guesses(self) -> list[int]:
        """Where what was found ends at the end of the text, the text is in a circle, and goes on so."""
        period = len(self._ids) - self._at
        return [self._ids[self._at + number % period] for number in range(self._count)]

    def _chances(self) -> Iterator[float]:
        """How probable it is that each of the next guesses comes true, when all before it have."""
        length = self.length
        while length:
            yield self._pace.record.chance(length)
            length += 1

    def _append(self, id: int) -> None:
        ids = self._ids
        ids.append(id)
        last = tuple(ids[-SHORTEST:])
        self._before.append(self._latest.get(last, 0))
        self._latest[last] = len(ids)

    def _search(self) -> None:
        """The longest stretch that ends the text and stood in it before, of those that are looked at."""
        self.length, place = 0, self._before[-1] if self._before else 0
        for _ in range(CANDIDATES):
            if place < SHORTEST:
                break
            if (common := self._common(place)) > self.length:
                self.length, self._at = common, place
            place = self._before[place - 1]

    def _common(self, place: int) -> int:
        """How many tokens before this place are those at the end."""
        ids, end = self._ids, len(self._ids)
        most = min(place, LONG_ENOUGH)
        return next((n for n in range(most) if ids[place - 1 - n] != ids[end - 1 - n]), most)
