"""Statistics of an importance matrix: which matrices, and how many of their columns, matter most.

These are the statistics of llama-imatrix --show-statistics, computed from the mean squares of the columns' inputs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.imatrix_file import Imatrix

ACTIVE = 1e-5  # columns whose inputs have a smaller mean square are considered inactive
BLOCK = re.compile(r"^blk\.(\d+)\.")

Means = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one matrix, or of all matrices of a layer."""

    name: str
    layer: int | None
    n: int  # columns, of all experts together
    total: float  # of all mean squares
    least: float
    most: float
    mean: float
    deviation: float
    active: float  # the fraction of the columns above ACTIVE
    entropy: float  # in bits: log2(n) if all columns are equally important
    outlier_fraction: float  # the fraction more than a standard deviation from the mean (Dumitru et al., 2024: ZD)
    similarity: float | None  # cosine similarity with the same matrix of the previous layer


def by_matrix(matrix: Imatrix) -> list[Statistics]:
    """Return the statistics of every matrix, grouped by kind, the most important ones first."""
    means = {name: entry.means.astype(np.float64).ravel() for name, entry in matrix.entries.items()}
    statistics = [
        compute_statistics(name, layer_of(name), values, means.get(previous_layer_name(name)))
        for name, values in means.items()
    ]
    return sorted(statistics, key=lambda each: (BLOCK.sub("", each.name), -each.total))


def by_layer(matrix: Imatrix) -> list[Statistics]:
    """Return the statistics of every layer, with all of its matrices concatenated."""
    layers: dict[int, dict[str, Means]] = {}
    for name, entry in sorted(matrix.entries.items()):
        if (layer := layer_of(name)) is not None:
            layers.setdefault(layer, {})[BLOCK.sub("", name)] = entry.means.astype(np.float64).ravel()
    return [
        compute_statistics(f"blk.{layer}", layer, concatenate(kinds), concatenate(layers.get(layer - 1, {})))
        for layer, kinds in sorted(layers.items())
    ]


def concatenate(kinds: Mapping[str, Means]) -> Means:
    """Return all means in one array."""
    return np.concatenate([*kinds.values(), np.zeros(0)])


def compute_statistics(name: str, layer: int | None, means: Means, previous: Means | None) -> Statistics:
    """Return the statistics of these mean squares. They are compared with `previous` if that has the same length."""
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
        outlier_fraction=float((distance > deviation).mean()),
        similarity=cosine(means, previous) if comparable and previous is not None else None,
    )


def entropy(means: Means) -> float:
    """Return the entropy, in bits, of the columns' fractions of the total."""
    fractions = means[means > 0] / means.sum()
    return float(-(fractions * np.log2(fractions)).sum())


def cosine(a: Means, b: Means) -> float:
    """Return the cosine similarity of two vectors; 1 if one of them is zero."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length else 1.0


def layer_of(name: str) -> int | None:
    """Return the layer number in a tensor name, or None."""
    match = BLOCK.match(name)
    return int(match[1]) if match else None


def previous_layer_name(name: str) -> str:
    """Return the name of the same tensor in the previous layer."""
    return BLOCK.sub(lambda match: f"blk.{int(match[1]) - 1}.", name)
