"""Images and sounds in the naive forward pass: which tokens are rows of images, and the rotary positions of tokens."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.builder import ModalityFunction
from localinfer.naive.formulas import Floats
from localinfer.runtime.media.media_embeddings import MediaEmbeddings


class NaiveMedia:
    """The places of media in a list of token ids. Token -1 - k is row k of all `media`.

    `coordinates` are the rotary positions of all tokens, (n_tokens, 4). `groups` are the bidirectional spans that
    tokens are in, or -1. `rows` are the tokens that are media rows, and `values` their embeddings. `inner_rows` are
    those of them that are not the last row of an image.
    """

    def __init__(self, tokens: Sequence[int], media: Sequence[MediaEmbeddings]) -> None:
        table = [(each, row) for each in media for row in range(len(each))]
        self.coordinates, images = np.zeros((len(tokens), 4), np.int64), -1
        self.groups, self.rows, position, values = np.full(len(tokens), -1), [], 0, []
        self.inner_rows: list[int] = []
        for at, id in enumerate(tokens):
            self.coordinates[at] = position
            if id >= 0:
                position += 1
                continue
            image, row = table[-1 - id]
            images += row == 0
            place = None if image.coordinates is None else image.coordinates[row]
            if place is None or len(place) == 2:
                self.coordinates[at] += row
                if place is not None and place[0] >= 0:
                    self.coordinates[at, 1:] = *place, images
            else:
                self.coordinates[at, :3] += place
            self.groups[at] = at - row if image.bidirectional else -1
            self.rows.append(at)
            self.inner_rows += [at] if row < len(image) - 1 else []
            values.append(image.rows[row])
            position += image.n_positions if row == len(image) - 1 else 0
        self.values: Floats = np.array(values, np.float64)

    def later_rows(self) -> NDArray[np.bool_]:
        """Return which tokens attend to which later ones: to those of the same bidirectional span."""
        groups, at = self.groups, np.arange(len(self.groups))
        is_same = (groups[:, None] == groups[None, :]) & (groups[:, None] >= 0)
        return is_same & (at[:, None] < at[None, :])

    def slice(self, n: int, number: int) -> Floats:
        """Return slice `number` of the values of all media rows, n values each."""
        return self.values[:, n * number : n * (number + 1)]

    def by_modality(self, x: Floats, function: ModalityFunction[Floats]) -> Sequence[Floats]:
        """Return what the function makes of the rows of text in x, and of the inner rows of images."""
        if not self.inner_rows:
            return function(x, False)
        media = np.isin(np.arange(len(x)), self.inner_rows)
        results = []
        for of_text, of_media in zip(function(x[~media], False), function(x[media], True), strict=True):
            y = np.empty((len(x), of_text.shape[1]), x.dtype)
            y[~media], y[media] = of_text, of_media
            results.append(y)
        return results
