"""The result of reranking: documents in the order of their relevance to a query."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document, its index in the list that was ranked, and its score: higher is more relevant."""

    index: int
    score: float
    document: str


def rank(documents: Sequence[str], scores: NDArray[np.float32]) -> list[RankedDocument]:
    """Return the documents with their scores, float32 (len(documents),), the most relevant first.

    Documents with equal scores keep their order.
    """
    order = np.argsort(-scores, kind="stable")
    return [RankedDocument(int(index), float(scores[index]), documents[index]) for index in order]
