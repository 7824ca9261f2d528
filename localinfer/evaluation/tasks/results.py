"""Results of items, and the score of a task with its error."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Z_95 = 1.959963984540054  # the normal distribution has 95 % of its values within this many standard deviations


class ItemResult(NamedTuple):
    """Whether an item is answered correctly by each metric, and details for the output file."""

    group: str
    correct: Mapping[str, bool]
    details: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How many of how many items are correct."""

    n_correct: int
    n_items: int

    @property
    def value(self) -> float:
        """The fraction of correct items."""
        return self.n_correct / self.n_items

    @property
    def error(self) -> float:
        """The standard error of the fraction, as lm-evaluation-harness computes it: sqrt(p (1 - p) / (n - 1))."""
        return math.sqrt(self.value * (1 - self.value) / (self.n_items - 1)) if self.n_items > 1 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The Wilson score interval with a confidence of 95 %, which llama-perplexity prints."""
        n, p, z = self.n_items, self.value, Z_95
        center = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, center - half), min(1.0, center + half)


def accuracies(metrics: Iterable[str], results: Sequence[ItemResult]) -> dict[str, Accuracy]:
    """Return the accuracy of one or more results by each metric."""
    return {name: Accuracy(sum(each.correct[name] for each in results), len(results)) for name in metrics}


def by_group(results: Iterable[ItemResult]) -> dict[str, list[ItemResult]]:
    """Return the results by their group, sorted by its name."""
    groups: dict[str, list[ItemResult]] = {}
    for each in results:
        groups.setdefault(each.group, []).append(each)
    return dict(sorted(groups.items()))
