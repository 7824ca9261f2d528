"""The choice of types for this machine, from the predicted KL divergence, the time of a decode step, and the size.

    curve = SpeedCurve(size_curve, decode_time)
    point = curve.choose(Goal(size=900_000_000))

The default is the fastest file that is predicted to be neither worse nor larger than that of llama.cpp's recipe Q4_K_M;
with a number of tokens per second, the best file that decodes as fast. If no such file has the size of the goal, the
best file of that size takes its place.

Each tensor is read in the time that its type takes on this machine, and each byte has a price in time, such that the
file has the size that it should have. `localinfer.quantization.budget` then spends time where it reduces the divergence
most.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from localinfer.errors import UsageError
from localinfer.fit.decode_time import DecodeTime
from localinfer.lab.frontier import Costs, SizeCurve, SizePoint
from quant import ggml

REFERENCE_RECIPE = "Q4_K_M"
PICOSECOND = 1e-12  # the unit of costs
PRICES = 1.0, 4096.0  # of a byte, in picoseconds: reading one takes 5 to 50
STEPS, PRICE_STEPS = 20, 8  # of bisection


@dataclass(frozen=True, slots=True)
class Goal:
    """What a file must meet: at most `size` bytes, and so many tokens per second (0: those of the default rule)."""

    size: int
    tokens_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class FitPoint:
    """A choice of types, by name: the size of the file, the predicted divergence in nats per token, and the predicted
    time of a decode step."""

    types: Mapping[str, str]
    size: int
    divergence: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return 1 / self.seconds


class SpeedCurve:
    """Predicted divergences, sizes and times of choices of types."""

    def __init__(self, curve: SizeCurve, time: DecodeTime) -> None:
        self._curve = curve
        self._times = {
            name: {kind: time.of_tensor(name, kind) / PICOSECOND for kind in kinds}
            for name, kinds in curve.kinds.items()
        }
        self._rest = time.seconds({name: read.kind for name, read in time.reads.items() if name not in self._times})

    @property
    def reference(self) -> FitPoint | None:
        """REFERENCE_RECIPE; None if the divergence of one of its types is not known."""
        found = self._curve.recipe(REFERENCE_RECIPE)
        return self.point(found) if found else None

    def point(self, point: SizePoint) -> FitPoint:
        """Return a choice with its time."""
        picoseconds = sum(self._times[name][kind] for name, kind in point.types.items())
        return FitPoint(point.types, point.size, point.divergence, self._rest + PICOSECOND * picoseconds)

    def choose(self, goal: Goal) -> FitPoint:
        """Return the choice for a goal. Raises UsageError if it cannot be met."""
        if (smallest := self._curve.smallest_size) > goal.size:
            raise UsageError(f"--ram: leaves {max(0, goal.size):,} bytes for the file; the smallest has {smallest:,}")
        if goal.tokens_per_second:
            return self._best_at_speed(goal)
        reference = self.reference
        if reference is None or (found := self.fastest(reference.divergence, min(goal.size, reference.size))) is None:
            return self._best_of_size(goal.size)
        return min(found, reference, key=lambda each: each.seconds) if reference.size <= goal.size else found

    def fastest(self, divergence: float, size: int) -> FitPoint | None:
        """Return the fastest choice with at most this divergence and size; None if there is none."""
        low, high = PRICES
        found = self._cheapest(low, divergence)
        if found is None or found.size <= size:
            return found
        found = None
        for _ in range(PRICE_STEPS):
            middle = (low * high) ** 0.5
            point = self._cheapest(middle, divergence)
            if point and point.size <= size:
                found, high = point, middle
            else:
                low = middle
        return found

    def _best_at_speed(self, goal: Goal) -> FitPoint:
        """Return the choice with the least divergence that decodes as fast as the goal."""
        low, high = 1e-6, 10.0
        found = None
        for _ in range(STEPS):
            middle = (low * high) ** 0.5
            point = self.fastest(middle, goal.size)
            if point and point.tokens_per_second >= goal.tokens_per_second:
                found, high = point, middle
            else:
                low = middle
        if found is None:
            at_most = f"with this model on this machine, {goal.tokens_per_second:g} cannot be reached"
            raise UsageError(f"--tokens-per-second: {at_most} in {goal.size:,} bytes")
        return found

    def _best_of_size(self, size: int) -> FitPoint:
        found = self._curve.best(size)
        assert found
        return self.point(found)

    def _cheapest(self, price: float, divergence: float) -> FitPoint | None:
        """Return the choice of least cost with at most this divergence, if a byte has this price."""
        costs = self._costs(price)
        low, high = (sum(end(each.values()) for each in costs.values()) for end in (min, max))
        found = self._curve.best_within(costs, high)
        if found is None or found.divergence > divergence:
            return None
        for _ in range(STEPS):
            middle = (low + high) // 2
            point = self._curve.best_within(costs, middle)
            if point and point.divergence <= divergence:
                found, high = point, middle
            else:
                low = middle
        return self.point(found)

    def _costs(self, price: float) -> Costs:
        """Return the cost of each type of each tensor: its time, and the price of its bytes."""
        n_weights = self._curve.n_weights
        return {
            name: {
                kind: round(time + price * ggml.nbytes(ggml.TYPE_NUMBERS[kind], [n_weights[name]]))
                for kind, time in times.items()
            }
            for name, times in self._times.items()
        }
