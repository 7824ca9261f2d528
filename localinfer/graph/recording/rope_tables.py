"""The rotation angles that the attention ops of a batch read: of each token, and the mean ones of cache pages."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.buffers import Region
from localinfer.graph.properties.rope import Rope
from localinfer.kernels.layout import PAGE_SIZE


class Angles:
    """Tables of [cos of all pairs, sin of all pairs], float32, one row per position.

    They are computed in double precision for chunks of CHUNK_POSITIONS positions. The last MAX_CHUNKS chunks are
    cached.
    """

    CHUNK_POSITIONS, MAX_CHUNKS = 256, 64

    def __init__(self, rope: Rope, *, with_temperature: bool = False) -> None:
        self._rope = rope
        self._temperature = rope.temperature if with_temperature else None
        self._chunks: dict[int, NDArray[np.float32]] = {}  # by number, oldest first

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows of these positions, (n,) or, with several coordinates each, (n, axes)."""
        if positions.ndim == 2:
            return self._rows_of_coordinates(positions)
        numbers, within = np.divmod(positions, self.CHUNK_POSITIONS)
        rows = np.empty((len(positions), self._rope.n_rot), np.float32)
        for number in dict.fromkeys(numbers.tolist()):
            in_chunk = numbers == number
            rows[in_chunk] = self._chunk(number)[within[in_chunk]]
        return rows

    def _rows_of_coordinates(self, coordinates: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return rows in which each pair has the angle of its own coordinate; without sections, of the first one."""
        result = self.rows(coordinates[:, 0])
        for axis in range(1, 1 + int(self._rope.axes.max())) if self._rope.axes is not None else ():
            columns = np.tile(self._rope.axes == axis, 2)
            result[:, columns] = self.rows(coordinates[:, axis])[:, columns]
        return result

    def row(self, position: int) -> NDArray[np.float32]:
        """Return the row of one position."""
        number, within = divmod(position, self.CHUNK_POSITIONS)
        row: NDArray[np.float32] = self._chunk(number)[within]
        return row

    def _chunk(self, number: int) -> NDArray[np.float32]:
        if number not in self._chunks:
            if len(self._chunks) == self.MAX_CHUNKS:
                del self._chunks[next(iter(self._chunks))]
            self._chunks[number] = self._compute(
                np.arange(number * self.CHUNK_POSITIONS, (number + 1) * self.CHUNK_POSITIONS)
            )
        return self._chunks[number]

    def _compute(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        angles = (positions - self._rope.offset)[:, None] * self._rope.frequencies[None, :]
        amplitude = self._rope.amplitude * (
            self._temperature.scale_at(positions)[:, None] if self._temperature else 1.0
        )
        return (amplitude * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)).astype(np.float32)


@dataclass(eq=False)
class RopeTable:
    """The rotation angles of a batch, filled before each run: `rows`, and `sinks` for queries that attend to attention
    sinks."""

    rope: Rope
    angles: Angles
    rows: Region
    sinks: Region | None

    def fill(self, positions: NDArray[np.int64], n_ctx: int) -> None:
        """Fill the table for tokens at these rotary positions, (n,) or (n, axes). Distances to attention sinks are
        limited to n_ctx - 1."""
        size = len(positions) * self.rope.n_rot
        if positions.shape == (1,):
            self.rows.view(np.float32)[:size] = self.angles.row(int(positions[0]))
        else:
            self.rows.view(np.float32)[:size] = self.angles.rows(positions).ravel()
        if self.sinks:
            near = np.minimum(positions, n_ctx - 1)
            self.sinks.view(np.float32)[:size] = self.angles.rows(near).ravel()


@dataclass(eq=False)
class BlockTable:
    """The mean rotation of the cache pages of a batch's tokens, filled before each run.

    It is the mean of the angle rows of 64 adjacent positions. Pages start at position 0, and again after the `sinks`.
    """

    rope: Rope
    sinks: int
    rows: Region

    def page_starts(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first position in the page of each position."""
        begin = np.where(positions < self.sinks, 0, self.sinks)
        starts: NDArray[np.int64] = positions - (positions - begin) % PAGE_SIZE
        return starts

    def fill(self, starts: NDArray[np.int64]) -> None:
        """Fill the table for tokens whose pages begin at these rotary positions."""
        pages, numbers = np.unique(starts, return_inverse=True)
        self.rows.view(np.float32)[: len(starts) * self.rope.n_rot] = self.at(pages)[numbers].ravel()

    def at(self, first: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows of pages that start at these positions. The mean of equidistant rotations is the middle
        rotation times the Dirichlet kernel."""
        frequencies = self.rope.frequencies
        half = np.sin(frequencies / 2)
        rotates = np.abs(half) > 1e-12
        lengths = np.where(rotates, np.sin(PAGE_SIZE * frequencies / 2) / (PAGE_SIZE * np.where(rotates, half, 1)), 1)
        angles = (first[:, None] + (PAGE_SIZE - 1) / 2) * frequencies
        amplitude = self.rope.amplitude * lengths
        return np.concatenate([amplitude * np.cos(angles), amplitude * np.sin(angles)], axis=1).astype(np.float32)
