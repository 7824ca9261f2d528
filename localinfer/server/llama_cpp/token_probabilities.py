"""`completion_probabilities`: the probabilities of generated tokens and of their alternatives.

Without `post_sampling_probs`, they are those of the model, as logarithms. With it, they are those from which the
sampler draws.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localinfer.generation.pieces import NO_TOKEN
from localinfer.server.openai.logprobs import chat_logprob, describe_token

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece
    from localinfer.generation.sampling import SamplerChain
    from localinfer.model import Model


class SampledProbabilities:
    """A sampler that draws as its chain does, and records the probabilities of the `n` most probable candidates."""

    def __init__(self, chain: "SamplerChain", n: int) -> None:
        self._chain, self._n = chain, n
        self._recorded: dict[int, list[tuple[int, float]]] = {}  # by the number of tokens before; the chosen one first

    def __call__(self, logits: NDArray[np.float32], tokens: Sequence[int]) -> int:
        from localinfer.generation.sampling.candidates import softmax

        candidates = self._chain.candidates(logits, tokens)
        chosen = self._chain.draw(candidates)
        probabilities = softmax(candidates.logits)
        order = np.argsort(-probabilities, kind="stable")[: self._n]
        top = [(int(candidates.ids[at]), float(probabilities[at])) for at in order if probabilities[at] > 0]
        of_chosen = float(probabilities[candidates.ids == chosen].sum())
        self._recorded[len(tokens)] = [(chosen, of_chosen), *top]
        return chosen

    def describe(self, position: int, model: "Model") -> dict[str, Any] | None:
        """Return the probabilities of the token after `position` tokens; None if it was not drawn."""
        if position not in self._recorded:
            return None
        chosen, *top = [describe_token(id, model) | {"prob": p} for id, p in self._recorded[position]]
        return chosen | {"top_probs": top}


def model_probabilities(piece: "Piece", n: int, model: "Model") -> dict[str, Any] | None:
    """Return a token's log-probability and those of its alternatives; None for a piece without a token."""
    return None if piece.id == NO_TOKEN or piece.logprob is None else chat_logprob(piece, n, model)
