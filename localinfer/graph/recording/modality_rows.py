"""Products that have other matrices for the rows of images than for those of text (the visual expert of CogVLM; Wang et
al., 2023).

The rows of each modality are gathered, multiplied, and put together again. A batch usually has rows of one modality
only; products of no rows read no weights.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from localinfer.graph.builder import ModalityFunction
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.recording.media_input import MediaRows
from localinfer.graph.recording.points import PointRecorder
from localinfer.kernels.signatures import COMBINE_EXPERTS, GATHER


class ModalityRows:
    """The rows of text and those of images in a batch."""

    def __init__(self, graph: ComputeGraph) -> None:
        self._graph = graph
        self._text, self._media = graph.rows(graph.batch), graph.rows(graph.batch)
        graph.rare_rows = self._media
        # int32: the token of each row, and for each token its row of text, or -1 - its row of media
        self._tokens = {rows: graph.region(4 * graph.batch) for rows in (self._text, self._media)}
        self._places = graph.region(4 * graph.batch)

    def token_numbers(self, rows: Rows) -> Region | None:
        """Return the memory that has the number of the token of each row; None for other rows."""
        return self._tokens.get(rows)

    def apply(self, x: Buffer, function: ModalityFunction[Buffer], points: PointRecorder) -> Sequence[Buffer]:
        """Record what the function makes of the rows of both modalities, without points in it."""
        with points.suspended():
            text, media = function(self._gather(x, self._text), False), function(self._gather(x, self._media), True)
        return [self._combine(x.rows, *both) for both in zip(text, media, strict=True)]

    def _gather(self, x: Buffer, rows: Rows) -> Buffer:
        y = self._graph.buffer(x.n, rows)
        self._graph.op(
            "modality.gather", GATHER, rows, constants=self._graph.layouts, chunks=(0, 8), x=x,
            order=self._tokens[rows], weights=0, used=1, n=x.n, y=y, q=y.quantized,
        )  # fmt: skip
        return y

    def _combine(self, rows: Rows, text: Buffer, media: Buffer) -> Buffer:
        y = self._graph.buffer(text.n, rows)
        self._graph.op(
            "modality.combine", COMBINE_EXPERTS, rows, chunks=(0, 8), small=text, large=media, pair_rows=self._places,
            weights=0, used=1, n=y.n, y=y,
        )  # fmt: skip
        return y

    def fill(self, tokens: int, runs: Iterable[MediaRows]) -> None:
        """Set the rows of a batch of `tokens` tokens with these media rows."""
        is_media = np.zeros(tokens, np.bool_)
        for run in runs:
            is_media[run.first : run.first + len(run.values) - run.is_end] = True
        places = self._places.view(np.int32)
        for rows, numbers in ((self._text, np.flatnonzero(~is_media)), (self._media, np.flatnonzero(is_media))):
            rows.set(len(numbers))
            self._tokens[rows].view(np.int32)[: len(numbers)] = numbers
            own = np.arange(len(numbers))
            places[numbers] = own if rows is self._text else -1 - own
