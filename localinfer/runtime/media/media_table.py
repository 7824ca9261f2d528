"""The table of a model's media rows: embeddings of images and sounds, which negative token ids stand for.

    ids = table.add(embeddings)      # [-1 - first, -2 - first, ...], the same for equal digests

Token id -1 - k is row k of the table. Ids stay valid as long as the model. If there are too many rows, the table drops
them, the least recently added ones first, until embeddings of the same digest are added again. A caller that still
needs rows keeps the object that `hold` returns; as long as it exists, the table finds these rows.

An id is never used for another image, so a list of ids always means the same images. The table therefore keeps 240
bytes for each image or sound that was ever added, which are 21 MB for one per second for a day. There are enough ids
for 524,288 images with 4,096 rows each: at one per second, for six days without a pause, and with 256 rows each for 97
days.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from localinfer.errors import LocalInferError, UsageError
from localinfer.runtime.media.media_embeddings import MediaEmbeddings

MAX_BYTES = 1 << 30  # of rows that are kept although nobody holds them
MAX_ROWS = 1 << 31  # ids are int32
MAX_POSITIONS = 1 << 24  # of a span: those of a long video may be more than its rows


class MissingRowsError(LocalInferError):
    """The rows of a media id have been dropped."""


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """The rows of one image or sound in the table: `count` rows from `first` on. See `MediaEmbeddings` for the rest."""

    first: int
    count: int
    digest: bytes
    n_positions: int
    bidirectional: bool

    @property
    def end(self) -> int:
        """The number after the last row."""
        return self.first + self.count

    @property
    def ids(self) -> list[int]:
        """The media ids of all rows."""
        return list(range(-1 - self.first, -1 - self.end, -1))


class MediaRun(NamedTuple):
    """Rows of a span that follow each other in a list of token ids: the index of the first one there, its row within
    the span, and the number of rows."""

    at: int
    span: MediaSpan
    row: int
    n_rows: int


class MediaTable:
    """The media rows of a model, each of `row_size` floats. Threads may call the methods."""

    def __init__(self, row_size: int) -> None:
        self._row_size, self._lock = row_size, Lock()
        self._spans: list[MediaSpan] = []  # in the order of their rows
        self._firsts: list[int] = []  # the first row of each span
        self._span_of_digest: dict[bytes, MediaSpan] = {}
        self._embeddings: OrderedDict[bytes, MediaEmbeddings] = OrderedDict()  # least recently added first
        self._n_bytes = 0
        self._alive: WeakValueDictionary[bytes, MediaEmbeddings] = WeakValueDictionary()  # these, and those held

    def add(self, embeddings: MediaEmbeddings) -> list[int]:
        """Keep rows, and return their media ids. Raises UsageError if they do not fit the model."""
        return self.hold(embeddings)[0]

    def hold(self, embeddings: MediaEmbeddings) -> tuple[list[int], MediaEmbeddings]:
        """Keep rows as `add` does, and return what the caller must refer to so that the ids have their rows: these
        embeddings, or those of the same digest that somebody holds already."""
        self._check(embeddings)
        with self._lock:
            span = self._span(
                embeddings.digest, len(embeddings), embeddings.n_positions, bidirectional=embeddings.bidirectional
            )
            embeddings = self._alive.setdefault(embeddings.digest, embeddings)
            previous = self._embeddings.pop(embeddings.digest, None)
            self._embeddings[embeddings.digest] = embeddings
            self._n_bytes += embeddings.rows.nbytes - (previous.rows.nbytes if previous else 0)
            while self._n_bytes > MAX_BYTES and len(self._embeddings) > 1:
                self._n_bytes -= self._embeddings.popitem(last=False)[1].rows.nbytes
            return span.ids, embeddings

    @contextmanager
    def reserved(self, spans: Iterable[MediaSpan]) -> Iterator[list[MediaSpan]]:
        """Provide the spans of this table that stand for those of another one, whose rows may be added later.

        If the context ends in an error, those that are new are removed again, unless others follow them. Raises
        UsageError if the rows of a digest are others here.
        """
        added = list[MediaSpan]()
        try:
            with self._lock:
                result = []
                for each in spans:
                    is_known, way = each.digest in self._span_of_digest, each.bidirectional
                    result.append(self._span(each.digest, each.count, each.n_positions, bidirectional=way))
                    added += [] if is_known else result[-1:]
            yield result
        except BaseException:
            with self._lock:
                while added and self._spans[-1] is added[-1] and added[-1].digest not in self._alive:
                    del self._firsts[-1], self._spans[-1], self._span_of_digest[added.pop().digest]
            raise

    def _span(self, digest: bytes, count: int, n_positions: int, *, bidirectional: bool) -> MediaSpan:
        known = self._span_of_digest.get(digest)
        span = MediaSpan(
            known.first if known else self._spans[-1].end if self._spans else 0,
            count, digest, n_positions, bidirectional,
        )  # fmt: skip
        if known and known != span:
            raise UsageError("media: embeddings of the same digest must have the same rows and positions")
        if not known:
            if span.end > MAX_ROWS:
                what = f"the model has numbered {MAX_ROWS:,} rows of images and sounds"
                raise LocalInferError(f"media: {what}, and has no numbers left; load it again")
            self._spans.append(span)
            self._firsts.append(span.first)
            self._span_of_digest[digest] = span
        return span

    def _check(self, embeddings: MediaEmbeddings) -> None:
        """Raise UsageError unless the rows fit the model."""
        rows, coordinates = embeddings.rows, embeddings.coordinates
        if rows.dtype != np.float32 or rows.ndim != 2 or not len(rows) or rows.shape[1] != self._row_size:
            what = f"{rows.dtype} {list(rows.shape)}"
            raise UsageError(f"media: rows must be float32 of {self._row_size} values each, not {what}")
        if not 1 <= embeddings.n_positions <= MAX_POSITIONS:
            what = f"is {embeddings.n_positions}; it must be from 1 to {MAX_POSITIONS}"
            raise UsageError(f"media: n_positions {what}")
        if coordinates is None:
            return
        n_axes = coordinates.shape[1] if coordinates.ndim == 2 else 0
        least = {3: 0, 2: -1}.get(n_axes, 0)
        if coordinates.shape != (len(rows), n_axes) or n_axes not in (2, 3) or coordinates.min() < least:
            what = f"three numbers from 0 on, or two from -1 on, for each of {len(rows)} rows"
            raise UsageError(f"media: coordinates must be {what}")

    # --- by id ---

    def span_of(self, id: int) -> MediaSpan | None:
        """Return the span of a negative id, or None if it is not in the table."""
        row = -1 - id
        number = bisect_right(self._firsts, row) - 1
        return self._spans[number] if number >= 0 and row < self._spans[number].end else None

    def runs(self, ids: Sequence[int]) -> Iterator[MediaRun]:
        """Yield the runs of media rows in a list of token ids. Raises UsageError for an id that is not in the table."""
        for _, consecutive in groupby(((at, id) for at, id in enumerate(ids) if id < 0), sum):
            group = list(consecutive)
            while group:  # spans may follow each other without a gap
                at, id = group[0]
                span = self.span_of(id)
                if span is None:
                    raise UsageError(f"tokens: {id} is not the id of a media row of this model")
                row = -1 - id - span.first
                yield MediaRun(at, span, row, min(len(group), span.count - row))
                del group[: span.count - row]

    def embeddings_of(self, span: MediaSpan) -> MediaEmbeddings:
        """Return the embeddings of a span. Raises MissingRowsError if they have been dropped."""
        embeddings = self._alive.get(span.digest)
        if embeddings is None:
            what = "the embeddings of an image or a sound are no longer in memory"
            raise MissingRowsError(f"media: {what}: pass them to media_ids again")
        return embeddings
