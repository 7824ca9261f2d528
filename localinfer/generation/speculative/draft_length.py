"""The best draft length, by measured acceptance rates and the measured time of a pass by its number of tokens.

Let pi be the probability that the i-th draft token is accepted if all before it are. A pass that verifies k draft
tokens yields, on average,

    1 + p1 + p1 p2 + ... + p1 p2 .. pk

tokens: the accepted ones, and the one that the model samples after them. It takes the time of a pass of k + 1 tokens
plus the drafting time. A model with recurrent state may have to evaluate accepted tokens again after a rejected one;
the next pass then has more tokens. The best k yields the most tokens per second; it may be 0. The sampling time per
token does not depend on k.
"""

from collections import deque
from collections.abc import Iterable

MIN_SPEEDUP = 1.05  # a smaller estimated speedup may be noise
MIN_PROBABILITY = 0.02  # draft tokens that are less likely to be accepted are not considered
TILE_TOKENS = 4  # tokens of a register tile: the last tile of a pass costs the same if it is not full

DECAY = 0.95  # weight of earlier measurements with each new one
MAX_SLOWDOWN = 2.0  # measured times are clipped at this multiple of the expected time


class AcceptanceByMatchLength:
    """Acceptance rates by the length of the n-gram match before the draft token: longer matches are accepted more
    often.

    Prior counts stand for unknown rates.
    """

    PRIOR_COUNT = 3.0
    PRIOR = (0.0, 0.2, 0.35, 0.6, 0.8, 0.9, 0.95)  # by the bit length of the match length: 1, 2 and 3, 4 to 7, ...

    def __init__(self) -> None:
        self._n_drafted = [self.PRIOR_COUNT] * len(self.PRIOR)
        self._n_accepted = [self.PRIOR_COUNT * rate for rate in self.PRIOR]

    def update(self, length: int, is_accepted: bool) -> None:
        index = self._bin(length)
        self._n_drafted[index] = self._n_drafted[index] * DECAY + 1
        self._n_accepted[index] = self._n_accepted[index] * DECAY + is_accepted

    def rate(self, length: int) -> float:
        index = self._bin(length)
        return self._n_accepted[index] / self._n_drafted[index]

    def _bin(self, length: int) -> int:
        return min(length.bit_length(), len(self.PRIOR) - 1)


class RunningMedian:
    """The median of the latest times in seconds; 0 without any."""

    WINDOW = 9

    def __init__(self) -> None:
        self.value = 0.0
        self._latest = deque[float](maxlen=self.WINDOW)

    def update(self, seconds: float) -> None:
        self._latest.append(seconds)
        self.value = sorted(self._latest)[len(self._latest) // 2]


class PassCost:
    """The cost of a pass: the time for one token, and a linear model of the ratio for several tokens.

    The line is a least-squares fit through two prior points, which are typical for quantized weights and limited memory
    bandwidth, and through measured points with decaying weights.
    """

    PRIOR = ((4, 1.4), (32, 3.3))  # tokens, and the ratio of their time to that of one token

    def __init__(self) -> None:
        self._one_token = RunningMedian()
        self._prior = tuple(map(sum, zip(*(regression_sums(*point) for point in self.PRIOR), strict=True)))
        self._measured = regression_sums(0, 0.0, weight=0.0)
        self._fit()

    @property
    def one_token_seconds(self) -> float:
        """The time of a pass for one token in seconds, or 0 before the first measurement."""
        return self._one_token.value

    def update(self, tokens: int, seconds: float) -> None:
        """Add the measured time of a pass."""
        if tokens == 1:
            self._one_token.update(seconds)
        elif self.one_token_seconds:
            added = regression_sums(tokens, min(seconds / self.one_token_seconds, MAX_SLOWDOWN * self.ratio(tokens)))
            self._measured = tuple(DECAY * old + term for old, term in zip(self._measured, added, strict=True))
            self._fit()

    def ratio(self, tokens: int) -> float:
        """Return the time of a pass for `tokens` tokens relative to one token."""
        return max(1.0, self._intercept + self._slope * tokens)

    @property
    def slope(self) -> float:
        """The additional relative time of each further token."""
        return self._slope

    def _fit(self) -> None:
        n, x, y, xx, xy = (prior + measured for prior, measured in zip(self._prior, self._measured, strict=True))
        self._slope = max(0.0, (n * xy - x * y) / (n * xx - x * x))
        self._intercept = (y - self._slope * x) / n


class DraftLengthModel:
    """All measurements of one model. It outlives a run."""

    def __init__(self) -> None:
        self.match_acceptance, self.cost = AcceptanceByMatchLength(), PassCost()
        self._n_accepted, self._n_recomputed = 1.0, 0.0  # sums over the passes with a rejected token

    def update_rejected(self, n_accepted: int, n_recomputed: int) -> None:
        """Add a pass with a rejected draft token: the number of accepted ones, and how many of these must be evaluated
        again."""
        self._n_accepted = DECAY * self._n_accepted + n_accepted
        self._n_recomputed = DECAY * self._n_recomputed + n_recomputed

    def best_length(
        self, rates: Iterable[float], min_tokens: int, max_tokens: int, draft_cost: float = 0.0
    ) -> tuple[int, float]:
        """Return the best draft length and its estimated speedup, or (0, 1.0) if no draft pays off.

        `rates` are the acceptance rates of consecutive draft tokens, and `draft_cost` is the time of drafting one
        token, relative to a pass for one token.
        """
        best, best_speedup = 0, MIN_SPEEDUP
        tokens = all_accepted = 1.0
        recompute_cost = (
            self.cost.slope * self._n_recomputed / self._n_accepted
        )  # per accepted token before a rejected one
        for count, rate in enumerate(rates, 1):
            all_accepted *= rate
            tokens += all_accepted
            if count > max_tokens or all_accepted < MIN_PROBABILITY:
                break
            if count >= min_tokens and ((count + 1) % TILE_TOKENS == 0 or count == max_tokens):
                expected_before_rejection = tokens - 1 - count * all_accepted
                speedup = tokens / (
                    self.cost.ratio(count + 1) + count * draft_cost + recompute_cost * expected_before_rejection
                )
                best, best_speedup = (count, speedup) if speedup > best_speedup else (best, best_speedup)
        return best, best_speedup if best else 1.0


def regression_sums(x: float, y: float, weight: float = 1.0) -> tuple[float, ...]:
    """Return the terms that a point adds to the sums of a least-squares line."""
    return weight, weight * x, weight * y, weight * x * x, weight * x * y
