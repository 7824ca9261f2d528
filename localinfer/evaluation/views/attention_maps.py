"""Attention maps: which tokens each token attends to, in each head of each layer."""

import base64
import html
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.evaluation.views.cells import Cell, Row, html_table, rich_table, visible

if TYPE_CHECKING:  # rich is only imported to print a map
    from rich.table import Table

Floats = NDArray[np.float32]

MAX_CELLS = 64  # tokens of a map that is shown as a table; a larger one is a picture
MAX_COLUMNS, LARGEST = 20, 3  # tokens of a map in a terminal; of a longer text, the tokens of a row
WIDTH, LARGE_WIDTH = 96, 384  # of the pictures of all heads, and of the picture of one, in pixels of the screen
SCREEN_PIXELS = 2  # for each pixel of a picture, at least: several tokens of a long text share one


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The attention weights of one head, or a mean of several: `weights`, (tokens, tokens), with a row for each token
    that attends. `name` says of which head, and `tokens` are the texts of the tokens."""

    name: str
    tokens: Sequence[str]
    weights: Floats

    def __repr__(self) -> str:
        return f"AttentionMap({self.name}, {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str:
        """Return a table for notebooks with a row for each token that attends, or a picture of a long text."""
        if len(self.tokens) > MAX_CELLS:
            return f"<p>{html.escape(self.name)}</p>{picture(self.weights, self.name, LARGE_WIDTH)}"
        return html_table(map(visible, self.tokens), self._rows())

    def __rich__(self) -> "Table":
        """Return a table for terminals: weights in percent, of a longer text only the largest ones of each token."""
        if len(self.tokens) > MAX_COLUMNS:
            return rich_table(["attends to", *[""] * (LARGEST - 1)], map(self._largest, range(len(self.tokens))))
        return rich_table(map(visible, self.tokens), self._rows())

    def _largest(self, token: int) -> Row:
        """Return a row with the tokens that a token attends to most."""
        row = self.weights[token]
        others = np.argsort(-row, kind="stable")[:LARGEST].tolist()
        cells = [Cell(f"{visible(self.tokens[other])} {row[other]:.0%}", float(row[other])) for other in others]
        return Row(visible(self.tokens[token]), cells)

    def _rows(self) -> Iterator[Row]:
        for number, row in enumerate(self.weights.tolist()):
            yield Row(visible(self.tokens[number]), [self._cell(number, other, p) for other, p in enumerate(row)])

    def _cell(self, token: int, other: int, weight: float) -> Cell:
        title = f"{self.tokens[token]!r} attends to {self.tokens[other]!r}: {weight:.1%}"
        return Cell(f"{weight:.0%}" if weight >= 0.005 else "", weight, title)


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The attention weights of a text: `weights` are float32 (heads, tokens, tokens), by the number of the layer, with
    a row for each token that attends. `tokens` are the texts of the tokens.

        maps = model.attention("The capital of France is")
        maps[3, 2]                                             # the map of layer 3, head 2
        maps.mean(3)                                           # the mean of its heads
    """

    tokens: Sequence[str]
    weights: Mapping[int, Floats]

    def __getitem__(self, place: tuple[int, int]) -> AttentionMap:
        """Return the map of a layer and a head, both counted from 0. Raises UsageError if there is no such head."""
        layer, head = place
        heads = self._layer(layer)
        if not 0 <= head < len(heads):
            raise UsageError(f"layer {layer}: has no head {head}, but the heads 0 to {len(heads) - 1}")
        return AttentionMap(f"layer {layer}, head {head}", self.tokens, heads[head])

    def mean(self, layer: int) -> AttentionMap:
        """Return the mean of the heads of a layer."""
        return AttentionMap(f"layer {layer}, mean of the heads", self.tokens, self._layer(layer).mean(axis=0))

    def _layer(self, layer: int) -> Floats:
        if layer not in self.weights:
            raise UsageError(f"layer {layer}: not among the layers {', '.join(map(str, self.weights))}")
        return self.weights[layer]

    @property
    def entropies(self) -> Mapping[int, Floats]:
        """The mean entropy of the rows of each head, in bits, (heads,), by layer: low for a head that attends to few
        tokens."""
        return {layer: mean_entropies(heads) for layer, heads in self.weights.items()}

    def __repr__(self) -> str:
        return f"AttentionMaps({len(self.weights)} layers, {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str:
        """Return small pictures of all heads for notebooks: a row for each layer, the last one first. Darker means more
        attention."""
        rows = []
        for layer in sorted(self.weights, reverse=True):
            heads = enumerate(self.weights[layer])
            cells = (picture(each, f"layer {layer}, head {head}", WIDTH) for head, each in heads)
            rows.append(f"<tr><th>{layer}</th>{''.join(f'<td>{each}</td>' for each in cells)}</tr>")
        return f"<table><tbody>{''.join(rows)}</tbody></table>"

    def __rich__(self) -> "Table":
        """Return the entropies of all heads for terminals, a row for each layer, the last one first. Focused heads are
        shaded."""
        widest = max(map(len, self.weights.values()))
        largest = math.log2(max(2, len(self.tokens)))
        rows = [
            Row(f"layer {layer}", [Cell(f"{bits:.1f}", max(0.0, 1 - bits / largest)) for bits in found.tolist()])
            for layer, found in sorted(self.entropies.items(), reverse=True)
        ]
        return rich_table((f"head {head}" for head in range(widest)), rows)


def mean_entropies(heads: Floats) -> Floats:
    """Return the mean entropy of the rows of each head in bits, (heads,)."""
    bits = -np.log2(heads, out=np.zeros_like(heads), where=heads > 0)
    result: Floats = (heads * bits).sum(axis=2).mean(axis=1)
    return result


def picture(weights: Floats, title: str, width: int) -> str:
    """Return an HTML image of attention weights, (tokens, tokens). Its darkness is the square root of the weight, so
    that small weights are seen."""
    from PIL import Image

    step = -(-len(weights) * SCREEN_PIXELS // width)
    padded = np.pad(weights, (0, -len(weights) % step))
    largest = padded.reshape(len(padded) // step, step, len(padded) // step, step).max(axis=(1, 3))
    pixels = (255 * (1 - np.sqrt(largest.clip(0, 1)))).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    source = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    style = f"width:{width}px;image-rendering:pixelated"
    return f'<img src="{source}" title="{html.escape(title)}" alt="{html.escape(title)}" style="{style}">'


def attention_maps(weights: Mapping[str, Floats], tokens: Sequence[str]) -> AttentionMaps:
    """Return the attention maps of a trace: attention weights by the names of their points."""
    return AttentionMaps(tokens, {int(name.split(".")[-2]): values for name, values in weights.items()})
