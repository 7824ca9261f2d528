"""The media of a batch: which of its tokens are media rows, and the rotary positions of all."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate

import numpy as np

from localinfer.graph.recording.media_input import MediaRows
from localinfer.runtime.batch import Segment
from localinfer.runtime.compiled_graph import MediaInputs
from localinfer.runtime.media.sequence_media import Positions, SequenceMedia


def media_with_segment(segment: Segment) -> SequenceMedia:
    """Return the media of a sequence after the tokens of a segment were appended."""
    sequence, ids = segment.sequence, segment.ids
    return sequence.media.extended(ids.tolist(), len(sequence)) if sequence.media.table else sequence.media


def media_inputs(
    segments: Sequence[Segment], medias: Sequence[SequenceMedia], positions: Sequence[Positions]
) -> MediaInputs | None:
    """Return the media of a batch, or None if no sequence has any. `medias` and `positions` are those of each segment.

    Raises MissingRowsError if rows have been dropped.
    """
    if not any(medias):
        return None
    lengths = [len(each) for each in positions]
    firsts = [0, *accumulate(lengths)]

    def coordinates_before(offset: int) -> Positions:
        """See `MediaInputs`. Tokens before the first one have negative positions, as in text."""
        pairs = [(media, each - offset) for media, each in zip(medias, positions, strict=True)]
        return np.concatenate(
            [media.coordinates(np.maximum(each, 0)) + np.minimum(each, 0)[:, None] for media, each in pairs]
        )

    def page_positions(starts: Positions) -> Positions:
        divided = np.split(starts, firsts[1:-1])
        return np.concatenate([media.page_positions(each) for media, each in zip(medias, divided, strict=True)])

    return MediaInputs(
        [run for segment, first in zip(segments, firsts, strict=False) for run in media_rows(segment, first)],
        cache(coordinates_before),
        page_positions,
    )


def media_rows(segment: Segment, first: int) -> Iterator[MediaRows]:
    """Yield the runs of media rows of a segment, whose first token in the batch is `first`."""
    table = segment.sequence.media.table
    assert table is not None
    for run in table.runs(segment.ids.tolist()):
        end = run.row + run.n_rows
        yield MediaRows(first + run.at, table.embeddings_of(run.span).rows[run.row : end], end == run.span.count)
