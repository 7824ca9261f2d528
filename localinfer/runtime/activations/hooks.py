"""Hooks: functions that read or change activations at the points of a graph while a batch is evaluated.

Hooks belong to a sequence. A batch in which any sequence has hooks runs on a graph that is cut at their points; each
hook sees the rows of its own sequence only. A hook receives the activations and a `RowInfo`, and returns what replaces
them, or None.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.graph.points import is_of_encoder
from localinfer.graph.recording.points import Point

Floats = NDArray[np.float32]


class RowInfo(NamedTuple):
    """The rows that a hook receives: the name of the point, and the token id and the position of each row."""

    name: str
    tokens: NDArray[np.int32]
    positions: NDArray[np.int64]


Hook = Callable[[Any, RowInfo], object]  # returns the array that replaces the first argument, or None


class HookGroup(NamedTuple):
    """Hooks that are set together, by the name of their point. `begin_batch` is called before each batch with its token
    ids and positions, `rewind` with the number of tokens that a shortened sequence has, and `begin_media` before the
    images and sounds of a prompt are encoded."""

    hooks: Mapping[str, Hook]
    begin_batch: Callable[[NDArray[np.int32], NDArray[np.int64]], None] = lambda *_: None
    rewind: Callable[[int], None] = lambda _: None
    begin_media: Callable[[], None] = lambda: None


class SequenceHooks:
    """The hooks of a sequence, group after group: at `points` of its model, and at `encoder_points` of the encoders of
    its images and sounds. `error` is what one of them has raised in a batch with other sequences."""

    def __init__(self, groups: Sequence[HookGroup]) -> None:
        self.groups = groups
        names = {name for group in groups for name in group.hooks}
        self.encoder_points = frozenset(name for name in names if is_of_encoder(name))
        self.points = frozenset(names - self.encoder_points)
        self.error: Exception | None = None

    def begin_batch(self, tokens: NDArray[np.int32], positions: NDArray[np.int64]) -> None:
        """Announce the tokens of a batch."""
        for group in self.groups:
            group.begin_batch(tokens, positions)

    def rewind(self, n: int) -> None:
        """Note that the sequence has only `n` tokens now."""
        for group in self.groups:
            group.rewind(n)

    def begin_media(self) -> None:
        """Announce that the images and sounds of a prompt are encoded."""
        for group in self.groups:
            group.begin_media()

    def call(self, point: Point, rows: slice, info: RowInfo) -> None:
        """Call the hooks of a point for some rows. Raises UsageError if one returns something else than an array of the
        same shape."""
        for group in self.groups:
            if hook := group.hooks.get(point.name):
                values = point.read(rows)
                result = hook(values, info)
                if result is not None:
                    point.write(rows, checked_values(point.name, result, values.shape))

    def call_encoder_hooks(self, point: Point) -> None:
        """Call the hooks of a point of an encoder, whose rows are no tokens: their ids are -1."""
        n = point.rows.capacity
        self.call(point, slice(0, n), RowInfo(point.name, np.full(n, -1, np.int32), np.arange(n)))

    def take_error(self) -> Exception | None:
        """Return and forget the error of a hook."""
        error, self.error = self.error, None
        return error


class HookedRows(NamedTuple):
    """The rows of a batch that belong to a sequence with hooks: from row `first` on."""

    hooks: SequenceHooks
    first: int
    tokens: NDArray[np.int32]
    positions: NDArray[np.int64]

    def call(self, point: Point, output_rows: NDArray[np.int32] | None) -> None:
        """Call the hooks of a point. `output_rows` are the rows of the batch for which it has activations; None: all.
        Raises the errors of `SequenceHooks.call`."""
        first, end = self.first, self.first + len(self.tokens)
        tokens, positions = self.tokens, self.positions
        if output_rows is not None:
            first, end = np.searchsorted(output_rows, [first, end]).tolist()
            own = output_rows[first:end] - self.first
            tokens, positions = tokens[own], positions[own]
        if point.is_state:
            first, tokens, positions = end - 1, tokens[-1:], positions[-1:]
        if len(tokens):
            self.hooks.call(point, slice(first, end), RowInfo(point.name, tokens, positions))


def checked_values(name: str, result: object, shape: tuple[int, ...]) -> Floats:
    """Return what a hook returned as an array. Raises UsageError if it has another shape."""
    try:
        values = np.asarray(result, np.float32)
    except (TypeError, ValueError):
        raise UsageError(f"{name}: a patch returned {type(result).__name__}, not an array of numbers") from None
    if values.shape != shape:
        raise UsageError(f"{name}: a patch returned an array of shape {values.shape}; it must be {shape}")
    return values
