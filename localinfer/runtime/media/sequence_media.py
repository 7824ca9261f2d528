"""The media of a sequence: where their rows are, and the rotary positions that follow from them.

The position of a token in the cache is its index in the sequence. Its rotary position may differ: the rows of an image
have three coordinates each, and the text after it begins `n_positions` after the image's first row (M-RoPE; Wang et
al., 2024). Without media, both positions are the same.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.runtime.media.media_table import MediaSpan, MediaTable

Positions = NDArray[np.int64]

INCOMPLETE = "tokens: the rows of an image or a sound must be complete, one after another"


class PlacedSpan(NamedTuple):
    """A media span in a sequence: the index of its first row, whose rotary position is larger by `shift`."""

    start: int
    span: MediaSpan
    shift: int

    @property
    def end(self) -> int:
        """The index after the last row."""
        return self.start + self.span.count

    @property
    def shift_after(self) -> int:
        """The rotary position minus the index of the tokens that follow."""
        return self.shift + self.span.n_positions - self.span.count


class SequenceMedia:
    """The media spans of a sequence, in order. It does not change."""

    def __init__(self, table: MediaTable | None, spans: Sequence[PlacedSpan] = ()) -> None:
        self.table, self.spans = table, spans
        self._starts = [placed.start for placed in spans]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.spans)

    def extended(self, ids: Sequence[int], first: int) -> "SequenceMedia":
        """Return the media after `ids` were appended to the first `first` tokens."""
        if self.table is None or min(ids, default=0) >= 0:
            return self
        spans = list(self.spans)
        for run in self.table.runs(ids):
            if not run.row:
                spans.append(PlacedSpan(first + run.at, run.span, spans[-1].shift_after if spans else 0))
        return SequenceMedia(self.table, spans)

    def truncated(self, n: int) -> "SequenceMedia":
        """Return the media of the first `n` tokens. The last span may be incomplete."""
        count = bisect_left(self._starts, n)
        return self if count == len(self.spans) else SequenceMedia(self.table, self.spans[:count])

    def check_appended(self, ids: Sequence[int], first: int, max_rows: int) -> None:
        """Raise UsageError unless `ids` may follow the first `first` tokens: rows of a span follow each other, all of
        them. Bidirectional spans have at most `max_rows` rows.
        """
        last = self.spans[-1] if self.spans else None
        span: MediaSpan | None
        span, row, end = (last.span, first - last.start, 0) if last and last.end > first else (None, 0, 0)
        for run in self.table.runs(ids) if self.table else ():
            if (run.at, run.span, run.row) != ((end, span, row) if span else (run.at, run.span, 0)):
                raise UsageError(INCOMPLETE)
            end, row = run.at + run.n_rows, run.row + run.n_rows
            span = run.span if row < run.span.count else None
            if run.span.bidirectional and run.span.count > max_rows:
                what = f"media: {run.span.count} rows that attend to each other do not fit in a batch of {max_rows}"
                raise UsageError(f"{what}; ubatch_size (--ubatch-size) sets a larger one")
            if run.span.bidirectional and span:
                raise UsageError(INCOMPLETE)
        if span and end < len(ids):
            raise UsageError(INCOMPLETE)

    # --- positions ---

    def coordinates(self, positions: Positions) -> Positions:
        """Return the rotary positions of tokens, (n, 4): temporal, vertical and horizontal, and a fourth that is the
        first one; for rows with places in an image the first one, their column, their row and the number of the image
        (XD-RoPE). All are equal for text."""
        result = np.repeat((positions + self._shifts(positions))[:, None], 4, axis=1)
        for placed in self._between(int(positions.min()), int(positions.max()) + 1):
            inside = (positions >= placed.start) & (positions < placed.end)
            assert self.table is not None
            offsets = self.table.embeddings_of(placed.span).coordinates if inside.any() else None
            if offsets is None:
                continue
            each = offsets[positions[inside] - placed.start]
            if each.shape[1] == 3:
                result[inside, :3] = placed.start + placed.shift + each
            else:
                rows, has_place = np.flatnonzero(inside), each[:, 0] >= 0
                result[rows[has_place], 1:3] = each[has_place]
                result[rows[has_place], 3] = bisect_left(self._starts, placed.start)
        return result

    def page_positions(self, positions: Positions) -> Positions:
        """Return the rotary positions of the tokens that begin pages, (n,). All rows of a span count as its first one,
        so that the result does not depend on rows that may have been dropped."""
        result = positions + self._shifts(positions)
        for placed in self.spans:
            result[(positions >= placed.start) & (positions < placed.end)] = placed.start + placed.shift
        return result

    def _shifts(self, positions: Positions) -> Positions:
        """Return the difference between the rotary position and the index of each token, as if rows had consecutive
        positions."""
        shifts = np.zeros(len(positions), np.int64)
        for placed in self.spans:
            shifts[positions >= placed.start] = placed.shift
            shifts[positions >= placed.end] = placed.shift_after
        return shifts

    def _between(self, first: int, end: int) -> Iterator[PlacedSpan]:
        """Yield the spans with rows from `first` to `end` - 1."""
        for placed in self.spans[max(0, bisect_right(self._starts, first) - 1) :]:
            if placed.start >= end:
                break
            if placed.end > first:
                yield placed

    # --- bidirectional spans ---

    def bidirectional(self, first: int, end: int) -> list[PlacedSpan]:
        """Return the bidirectional spans with rows from `first` to `end` - 1."""
        return [placed for placed in self._between(first, end) if placed.span.bidirectional]

    def border(self, n: int) -> int:
        """Return the largest number of tokens, at most `n`, that does not end within a bidirectional span."""
        spans = self.bidirectional(n - 1, n) if n and self.spans else ()
        return next((placed.start for placed in spans if placed.end > n), n)
