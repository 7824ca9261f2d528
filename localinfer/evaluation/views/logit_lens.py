"""The logit lens (nostalgebraist, 2020): what the output layer would predict from the residual stream of each layer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localinfer.evaluation.views.cells import Cell, Row, html_table, rich_table, visible
from localinfer.evaluation.views.predictions import Floats, Ids, Predictions, predicted_lines
from localinfer.runtime.model_runner import ModelRunner

if TYPE_CHECKING:  # rich is only imported to print a lens
    from rich.table import Table

PATTERNS = ("blk.0.resid_pre", "blk.*.resid_post")


@dataclass(frozen=True, eq=False)
class LogitLens:
    """The most probable next tokens after each token, by the residual stream at each point.

    `points` are the names of the points, the embedding first, and `tokens` the texts of the evaluated tokens. `ids` are
    the predicted tokens, (points, tokens, top), the most probable first, `texts` their texts, and `probabilities`
    theirs. `entropies`, (points, tokens), are in bits. `final_ranks`, (points, tokens), are the ranks that each point
    gives to the model's own prediction; 0 is the best.
    """

    points: Sequence[str]
    tokens: Sequence[str]
    ids: Ids
    probabilities: Floats
    entropies: Floats
    final_ranks: Ids
    texts: Mapping[int, str]

    def text(self, point: int, token: int, rank: int = 0) -> str:
        """Return the text of a prediction."""
        return self.texts[int(self.ids[point, token, rank])]

    def __repr__(self) -> str:
        return f"LogitLens({len(self.points)} points, {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a row for each point, the last layer first, and a column for each token."""
        return html_table(map(visible, self.tokens), self._rows())

    def __rich__(self) -> "Table":
        """Return a table for terminals, as `_repr_html_`."""
        return rich_table(map(visible, self.tokens), self._rows())

    def _rows(self) -> Iterator[Row]:
        for point in reversed(range(len(self.points))):
            yield Row(self.points[point], [self._cell(point, token) for token in range(len(self.tokens))])

    def _cell(self, point: int, token: int) -> Cell:
        title = predicted_lines(self.ids[point, token], self.probabilities[point, token], self.texts)
        return Cell(visible(self.text(point, token)), float(self.probabilities[point, token, 0]), title)


def logit_lens(
    runner: ModelRunner, streams: Mapping[str, Floats], tokens: Sequence[str], top: int, text_of: Callable[[int], str]
) -> LogitLens:
    """Return the logit lens of residual streams, (tokens, n) each, by the names of their points; the last one is that
    after the last layer. `text_of` returns the text of a token id."""
    final = list(streams.values())[-1]
    own = np.concatenate([logits.argmax(axis=1) for logits in runner.output_logits(final)])
    points = [Predictions.of_batches(runner.output_logits(x), own, top) for x in streams.values()]
    found = Predictions(*(np.stack(values) for values in zip(*points, strict=True)))
    texts = {id: text_of(id) for id in np.unique(found.ids).tolist()}
    return LogitLens(list(streams), tokens, found.ids, found.probabilities, found.entropies, found.ranks, texts)
