"""How well a model predicts the tokens of a text."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localinfer.evaluation.views.cells import Cell, visible
from localinfer.evaluation.views.predictions import Floats, Ids, Predictions, predicted_lines

if TYPE_CHECKING:  # rich is only imported to print
    from rich.text import Text


@dataclass(frozen=True, eq=False)
class TokenProbabilities:
    """The probabilities that a model gives to the tokens of a text, each after those before it.

    `ids` and `tokens` are the ids and the texts of the tokens. `probabilities`, (tokens,), are their probabilities,
    `ranks` their ranks among all tokens, 0 the best, and `entropies` those of the predictions, in bits. The most
    probable tokens in place of each one are `predicted_ids`, (tokens, top), with `predicted_probabilities`; `texts` are
    their texts. The first token has no prediction: its numbers are nan, and its ids and its rank -1.
    """

    ids: Ids
    tokens: Sequence[str]
    probabilities: Floats
    ranks: Ids
    entropies: Floats
    predicted_ids: Ids
    predicted_probabilities: Floats
    texts: Mapping[int, str]

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-likelihood of all tokens but the first; nan if there is no other."""
        scored = self.probabilities[1:].astype(np.float64)
        if not len(scored):
            return math.nan
        with np.errstate(divide="ignore"):  # a probability that is 0 in float32
            return float(np.exp(-np.log(scored).mean()))

    def text(self, token: int, rank: int = 0) -> str:
        """Return the text of a prediction in place of a token but the first."""
        return self.texts[int(self.predicted_ids[token, rank])]

    def __repr__(self) -> str:
        return f"TokenProbabilities({len(self.tokens)} tokens, perplexity {self.perplexity:.2f})"

    def _repr_html_(self) -> str:
        """Return the text for notebooks, each token on a background that shows its probability."""
        cells = "".join(each.html("span") + "<br>" * breaks for each, breaks in self._cells())
        return f'<div style="font-family:monospace;white-space:pre-wrap">{cells}</div>'

    def __rich__(self) -> "Text":
        """Return the text for terminals, as `_repr_html_`."""
        from rich.text import Text

        parts = [part for each, breaks in self._cells() for part in (each.rich(), Text("\n" * breaks))]
        return Text().join(parts)

    def _cells(self) -> Iterator[tuple[Cell, int]]:
        """Yield the cell of each token, and the number of lines that end in it."""
        for number, token in enumerate(self.tokens):
            shade = 0.0 if number == 0 else float(self.probabilities[number])
            yield Cell(visible(token), shade, self._title(number)), token.count("\n")

    def _title(self, number: int) -> str:
        if number == 0:
            return "the first token has no prediction"
        found = predicted_lines(self.predicted_ids[number], self.predicted_probabilities[number], self.texts)
        numbers = f"rank {self.ranks[number]}, entropy {self.entropies[number]:.2f} bits"
        return f"{self.probabilities[number]:.1%}, {numbers}\n{found}"


def token_probabilities(
    batches: Iterable[Floats], ids: Sequence[int], tokens: Sequence[str], top: int, text_of: Callable[[int], str]
) -> TokenProbabilities:
    """Return the probabilities of at least two tokens with these `ids` and texts. `batches` are the logits after each
    token but the last, several rows at a time; `text_of` returns the text of a token id."""
    all_ids = np.array(ids, np.int64)
    found = Predictions.of_batches(batches, all_ids[1:], top)
    texts = {id: text_of(id) for id in np.unique(found.ids).tolist()}
    return TokenProbabilities(
        ids=all_ids,
        tokens=tokens,
        probabilities=after_first(found.token_probabilities, np.nan),
        ranks=after_first(found.ranks, -1),
        entropies=after_first(found.entropies, np.nan),
        predicted_ids=after_first(found.ids, -1),
        predicted_probabilities=after_first(found.probabilities, np.nan),
        texts=texts,
    )


def after_first(values: NDArray[Any], first: float) -> NDArray[Any]:
    """Return the values with a first row that is filled with a number."""
    return np.concatenate([np.full_like(values[:1], first), values])
