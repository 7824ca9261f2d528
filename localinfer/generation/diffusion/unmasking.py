"""Which tokens a step unmasks: the confidence of predictions, and the choice of positions."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.generation.sampling.candidates import Candidates, softmax
from localinfer.generation.sampling.final_samplers import draw_position

Floats = NDArray[np.float64]
Algorithm = Literal["origin", "entropy", "margin", "random", "confidence"]
ALGORITHMS: tuple[Algorithm, ...] = ("origin", "entropy", "margin", "random", "confidence")  # by llama.cpp's numbers
EPSILON = 1e-10  # within the logarithm of the entropy, as in Dream
SMALLEST = 1e-20  # of uniform random numbers whose logarithm is taken


class Prediction(NamedTuple):
    """The token that is predicted at a position, and the confidence in it."""

    id: int
    confidence: float


def predict(
    candidates: Candidates, algorithm: Algorithm, u: float, *, greedy: bool, noise: Floats | None = None
) -> Prediction:
    """Return the prediction at a position.

    The token is the most probable candidate if `greedy`; otherwise it is drawn by the number `u` in [0, 1), or is the
    best one after Gumbel `noise` was added to the logits.
    """
    probabilities = softmax(candidates.logits)
    if greedy:
        chosen = int(candidates.logits.argmax())
    elif noise is not None:
        chosen = int((candidates.logits + noise).argmax())
    else:
        chosen = draw_position(candidates, u) if candidates.ids.size > 1 else 0
    return Prediction(int(candidates.ids[chosen]), confidence(probabilities, chosen, algorithm))


def confidence(probabilities: Floats, chosen: int, algorithm: Algorithm) -> float:
    """Return the confidence in a prediction: the probability of the token (confidence), that by which the best token is
    above the second one (margin), or the negative entropy in nats."""
    if algorithm == "entropy":
        return float((probabilities * np.log(probabilities + EPSILON)).sum())
    if algorithm == "margin":
        best = np.sort(probabilities)[-2:]
        return float(best[-1] - best[0]) if best.size > 1 else float(best[0])
    return float(probabilities[chosen])


def choose_positions(
    confidences: Floats, count: int, temperature: float, random: np.random.Generator
) -> NDArray[np.intp]:
    """Return the indices of the `count` predictions of the largest confidence, among equals the first ones.

    With a `temperature`, they are drawn without replacement, with probabilities softmax(confidences / temperature).
    """
    if temperature > 0:
        confidences = confidences / temperature + gumbel_noise(random, len(confidences))
    return np.argsort(-confidences, kind="stable")[:count]


def gumbel_noise(random: np.random.Generator, n: int) -> Floats:
    """Return n numbers of the Gumbel distribution. The best of logits with them is a draw from their softmax."""
    noise: Floats = -np.log(-np.log(np.maximum(random.random(n), SMALLEST)))
    return noise
