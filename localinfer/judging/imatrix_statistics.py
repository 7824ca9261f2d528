"""What an importance matrix says of a model: which of its matrices, and how many of their columns, matter most.

The figures are those of llama-imatrix --show-statistics. All are of the mean squares of the columns' inputs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.files.imatrix_file import Imatrix

ACTIVE = 1e-5  # a column whose inputs have a smaller mean square hardly matters
BLOCK = re.compile(r"^blk\.(\d+)\.")

Means = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one matrix, or of all in a layer."""

    name: str
    layer: int | None
    n: int  # columns, of all experts together
    total: float  # of all mean squares
    least: float
    most: float
    mean: float
    deviation: float
    active: float  # the part of the columns above ACTIVE
    entropy: float  # bits: log2(n) where all columns matter alike
    outstanding: float  # the part that is more than a standard deviation off the mean (Dumitru et al., 2024: ZD)
    similarity: float | None  # cosine with the same matrix of the layer before


def by_matrix(matrix: Imatrix) -> list[Statistics]:
    """Of every matrix: those of one kind together, the most important ones first."""
    means = {name: entry.means.astype(np.float64).ravel() for name, entry in matrix.entries.items()}
    found = [statistics(name, layer_of(name), values, means.get(before(name))) for name, values in means.items()]
    return sorted(found, key=lambda each: (BLOCK.sub("", each.name), -each.total))


def by_layer(matrix: Imatrix) -> list[Statistics]:
    """Of every layer, all of its matrices put side by side."""
    layers: dict[int, dict[str, Means]] = {}
    for name, entry in sorted(matrix.entries.items()):
        if (layer := layer_of(name)) is not None:
            layers.setdefault(layer, {})[BLOCK.sub("", name)] = entry.means.astype(np.float64).ravel()
    return [
        statistics(f"blk.{layer}", layer, joined(kinds), joined(layers.get(layer - 1, {})))
        for layer, kinds in sorted(layers.items())
    ]


def joined(kinds: Mapping[str, Means]) -> Means:
    """All side by side."""
    return np.concatenate([*kinds.values(), np.zeros(0)])


def statistics(name: str, layer: int | None, means: Means, previous: Means | None) -> Statistics:
    """Of these mean squares; `previous` are those to compare with, if there are as many."""
    deviation = float(means.std(ddof=1)) if len(means) > 1 else 0.0
    distance = abs(means - means.mean())
    comparable = previous is not None and previous.shape == means.shape
    return Statistics(
        name=name,
        layer=layer,
        n=len(means),
        total=float(means.sum()),
        least=float(means.min()),
        most=float(means.max()),
        mean=float(means.mean()),
        deviation=deviation,
        active=float((means > ACTIVE).mean()),
        entropy=entropy(means),
        outstanding=float((distance > deviation).mean()),
        similarity=cosine(means, previous) if comparable and previous is not None else None,
    )


def entropy(means: Means) -> float:
    """Of the distribution that gives each column its share, in bits."""
    shares = means[means > 0] / means.sum()
    return float(-(shares * np.log2(shares)).sum())


def cosine(a: Means, b: Means) -> float:
    """1 for vectors of one direction, and where there is no direction at all."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length else 1.0


def layer_of(name: str) -> int | None:
    """The number of the block that a tensor is in."""
    found = BLOCK.match(name)
    return int(found[1]) if found else None


def before(name: str) -> str:
    """The same tensor of the block before."""
    return BLOCK.sub(lambda found: f"blk.{int(found[1]) - 1}.", name)
