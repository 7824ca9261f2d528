"""Memory that a forward pass needs: counted while it is recorded, taken when it is made ready to run."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64


@dataclass(eq=False)
class Region:
    """A stretch of memory of so many bytes."""

    nbytes: int
    array: NDArray[np.uint8] | None = None
    _views: dict[type[np.generic], NDArray[Any]] = field(default_factory=dict)

    def allocate(self) -> None:
        """Take zeroed memory, aligned to a cache line; the system gives pages when they are first touched."""
        raw = np.zeros(self.nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self.array = raw[start : start + self.nbytes]

    @property
    def address(self) -> int:
        """Where it lies."""
        assert self.array is not None, "the plan is not ready"
        return self.array.ctypes.data

    def view(self, dtype: type[np.generic]) -> NDArray[Any]:
        """Its contents as numbers."""
        if dtype not in self._views:
            assert self.array is not None, "the plan is not ready"
            self._views[dtype] = self.array.view(dtype)
        return self._views[dtype]


@dataclass(frozen=True, eq=False)
class Rows:
    """What ops are run for: tokens of a batch, or some of them, or pairs of a token and what was chosen for it.

    Their number stands in memory, and has a limit: `capacity`, and `few` when there are few tokens. Whether these are
    few is told by the number at `tokens`.
    """

    region: Region  # int64
    capacity: int
    few: int
    tokens: Region

    def set(self, count: int) -> None:
        """There are so many now."""
        self.region.view(np.int64)[0] = count


@dataclass(eq=False)
class Form:
    """Another form of a buffer's activations. There is memory for it only if some op reads it: whoever would write it
    is otherwise given the address 0, and leaves it out."""

    nbytes: int
    region: Region | None = None
    is_written: bool = False  # by the op that computes the activations, or by one of its own behind that


@dataclass(eq=False)
class Buffer:
    """Activations, float32 [rows][n], also quantized and rounded to bfloat16 where products take them so."""

    floats: Region
    n: int
    rows: Rows
    quantized: Form
    rounded: Form
