"""The logit lens (nostalgebraist, 2020): what the output layer would predict from the residual stream of each layer."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.runtime.model_runner import ModelRunner

if TYPE_CHECKING:  # rich is only imported to print a lens
    from rich.table import Table

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

PATTERNS = ("blk.0.resid_pre", "blk.*.resid_post")
HUE_CERTAIN = 140  # degrees, green; the lightness shows the probability


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
        cells = "".join(f"<th>{html.escape(repr(token)[1:-1])}</th>" for token in self.tokens)
        rows = "".join(self._html_row(number) for number in reversed(range(len(self.points))))
        return f"<table><thead><tr><th></th>{cells}</tr></thead><tbody>{rows}</tbody></table>"

    def _html_row(self, point: int) -> str:
        cells = []
        for token in range(len(self.tokens)):
            p, title = float(self.probabilities[point, token, 0]), html.escape(self._all_predictions(point, token))
            text = html.escape(repr(self.text(point, token))[1:-1])
            style = f"background:hsl({HUE_CERTAIN},60%,{100 - 45 * p:.0f}%);color:black"
            cells.append(f'<td title="{title}" style="{style}">{text}</td>')
        return f"<tr><th>{html.escape(self.points[point])}</th>{''.join(cells)}</tr>"

    def _all_predictions(self, point: int, token: int) -> str:
        """Return the predictions with their probabilities, on a line each."""
        pairs = zip(self.ids[point, token].tolist(), self.probabilities[point, token].tolist(), strict=True)
        return "\n".join(f"{p:.1%} {self.texts[id]!r}" for id, p in pairs)

    def __rich__(self) -> "Table":
        """Return a table for terminals, as `_repr_html_`."""
        from rich.table import Table
        from rich.text import Text

        table = Table("")
        for token in self.tokens:
            table.add_column(Text(repr(token)[1:-1]))
        for point in reversed(range(len(self.points))):
            shades = (round(255 * float(1 - p)) for p in self.probabilities[point, :, 0])
            texts = (repr(self.text(point, token))[1:-1] for token in range(len(self.tokens)))
            cells = [Text(text, f"rgb({shade},220,{shade})") for text, shade in zip(texts, shades, strict=True)]
            table.add_row(self.points[point], *cells)
        return table


class Predictions(NamedTuple):
    """The fields of a `LogitLens` for one point."""

    ids: Ids
    probabilities: Floats
    entropies: Floats
    final_ranks: Ids


def logit_lens(
    runner: ModelRunner, streams: Mapping[str, Floats], tokens: Sequence[str], top: int, text_of: Callable[[int], str]
) -> LogitLens:
    """Return the logit lens of residual streams, (tokens, n) each, by the names of their points; the last one is that
    after the last layer. `text_of` returns the text of a token id."""
    final = list(streams.values())[-1]
    own = np.concatenate([logits.argmax(axis=1) for logits in runner.output_logits(final)])
    points = [predictions_from(runner, x, own, top) for x in streams.values()]
    found = Predictions(*(np.stack(values) for values in zip(*points, strict=True)))
    texts = {id: text_of(id) for id in np.unique(found.ids).tolist()}
    return LogitLens(list(streams), tokens, texts=texts, **found._asdict())


def predictions_from(runner: ModelRunner, x: Floats, own: Ids, top: int) -> Predictions:
    """Return the predictions of the output layer from a residual stream. `own` are those of the model."""
    parts, first = list[Predictions](), 0
    for logits in runner.output_logits(x):
        parts.append(predictions(logits, own[first : first + len(logits)], top))
        first += len(logits)
    return Predictions(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def predictions(logits: Floats, own: Ids, top: int) -> Predictions:
    """Return the predictions of rows of logits."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    largest = np.argpartition(-logits, min(top, logits.shape[1]) - 1, axis=1)[:, :top]
    order = np.argsort(-np.take_along_axis(logits, largest, axis=1), axis=1, kind="stable")
    ids = np.take_along_axis(largest, order, axis=1)
    bits = -np.log2(p, out=np.zeros_like(p), where=p > 0)
    ranks = (logits > np.take_along_axis(logits, own[:, None], axis=1)).sum(axis=1)
    return Predictions(ids, np.take_along_axis(p, ids, axis=1), (p * bits).sum(axis=1), ranks)
