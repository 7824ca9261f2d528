"""How many guesses pay: by how often they come true, and by what a pass of so many tokens takes. Both are measured.

Let p1, p2, ... be how probable it is that a guess comes true when all before it have. A pass that looks at k guesses
makes, on average,

    1 + p1 + p1 p2 + ... + p1 p2 .. pk

tokens: those that come true, and the one that the model chooses behind them. It takes the time of k + 1 tokens in one
pass, and that of making the guesses. A model whose past is a state may have to compute once more what came true before
a guess that did not: one more token for each in the pass behind it. The k with the most tokens a second is the best
one; it may be none. What choosing a token takes has no say in it: it is the same for each.
"""

from collections import deque
from collections.abc import Iterable

WORTH = 1.05  # a smaller gain may be none: what is measured is never quite true
UNLIKELY = 0.02  # guesses that come true more seldom are not worth a thought
TILE = 4  # tokens that are multiplied together: a pass takes as long for one more than some tiles as for the next tile

FADING = 0.95  # how much of what was measured before still counts when there is something new
LATE = 2.0  # times as long as expected: a pass that took longer was interrupted, or waited for others


class Record:
    """How often guesses came true, by how many tokens were the same before them: the longer, the more often.

    Where nothing is known yet, it is as if some guesses had been made.
    """

    SOME = 3.0
    USUAL = (0.0, 0.2, 0.35, 0.6, 0.8, 0.9, 0.95)  # by the bits of that number: 1, 2 and 3, 4 to 7, ...

    def __init__(self) -> None:
        self._made = [self.SOME] * len(self.USUAL)
        self._came_true = [self.SOME * chance for chance in self.USUAL]

    def tell(self, length: int, came_true: bool) -> None:
        kind = self._kind(length)
        self._made[kind] = self._made[kind] * FADING + 1
        self._came_true[kind] = self._came_true[kind] * FADING + came_true

    def chance(self, length: int) -> float:
        kind = self._kind(length)
        return self._came_true[kind] / self._made[kind]

    def _kind(self, length: int) -> int:
        return min(length.bit_length(), len(self.USUAL) - 1)


class Middle:
    """What something takes: the one in the middle of the latest times, in seconds; 0 as long as there are none."""

    LATEST = 9

    def __init__(self) -> None:
        self.value = 0.0
        self._latest = deque[float](maxlen=self.LATEST)

    def tell(self, seconds: float) -> None:
        self._latest.append(seconds)
        self.value = sorted(self._latest)[len(self._latest) // 2]


class Cost:
    """What a pass takes: a time for one token, and how many times that for several, which is close to a straight line.

    It is the line of least squares through two points as they are where weights are quantized and memory is the limit,
    and through what was measured, of which the latest counts most.
    """

    USUAL = ((4, 1.4), (32, 3.3))  # tokens, and how many times as long they take as one

    def __init__(self) -> None:
        self._one = Middle()
        self._usual = tuple(map(sum, zip(*(sums(*point) for point in self.USUAL), strict=True)))
        self._measured = sums(0, 0.0, weight=0.0)
        self._fit()

    @property
    def one(self) -> float:
        """For one token, in seconds; 0 as long as none was measured."""
        return self._one.value

    def tell(self, tokens: int, seconds: float) -> None:
        """A pass of so many tokens took so long."""
        if tokens == 1:
            self._one.tell(seconds)
        elif self.one:
            new = sums(tokens, min(seconds / self.one, LATE * self.ratio(tokens)))
            self._measured = tuple(FADING * old + more for old, more in zip(self._measured, new, strict=True))
            self._fit()

    def ratio(self, tokens: int) -> float:
        """How many times as long a pass of several tokens takes as of one."""
        return max(1.0, self._first + self._slope * tokens)

    @property
    def more(self) -> float:
        """What one more token adds to that."""
        return self._slope

    def _fit(self) -> None:
        n, x, y, xx, xy = (usual + measured for usual, measured in zip(self._usual, self._measured, strict=True))
        self._slope = max(0.0, (n * xy - x * y) / (n * xx - x * x))
        self._first = (y - self._slope * x) / n


class Pace:
    """What is known of one model: it outlives a run."""

    def __init__(self) -> None:
        self.record, self.cost = Record(), Cost()
        self._came_true, self._forgotten = 1.0, 0.0  # guesses in front of wrong ones

    def tell(self, came_true: int, forgotten: int) -> None:
        """So many guesses came true before one did not, and the model has forgotten some of them with it."""
        self._came_true = FADING * self._came_true + came_true
        self._forgotten = FADING * self._forgotten + forgotten

    def best(self, chances: Iterable[float], fewest: int, most: int, each: float = 0.0) -> tuple[int, float]:
        """How many guesses to make when they come true with these chances, and how many times as fast that is: none
        where none pay. `each` is what it takes to make one, as a part of a pass for one token."""
        best, gain = 0, WORTH
        tokens = all_true = 1.0
        again = self.cost.more * self._forgotten / self._came_true  # what a right guess before a wrong one costs
        for count, chance in enumerate(chances, 1):
            all_true *= chance
            tokens += all_true
            if count > most or all_true < UNLIKELY:
                break
            if count >= fewest and ((count + 1) % TILE == 0 or count == most):
                before_wrong = tokens - 1 - count * all_true
                faster = tokens / (self.cost.ratio(count + 1) + count * each + again * before_wrong)
                best, gain = (count, faster) if faster > gain else (best, gain)
        return best, gain if best else 1.0


def sums(x: float, y: float, weight: float = 1.0) -> tuple[float, ...]:
    """What a point adds to the sums that a line of least squares is made of."""
    return weight, weight * x, weight * y, weight * x * x, weight * x * y
