"""Memory of a compute graph: sized while the graph is built, allocated by `ComputeGraph.finalize`."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.huge_pages import allocate_huge_pages
from localinfer.machine import untouched_memory

ALIGNMENT = 64
LARGE = 4 << 20  # bytes


@dataclass(eq=False)
class Region:
    """A contiguous block of memory."""

    nbytes: int
    array: NDArray[np.uint8] | None = None
    _views: dict[type[np.generic], NDArray[Any]] = field(default_factory=dict)

    def allocate(self) -> None:
        """Allocate zeroed memory, aligned to a cache line. The system gives memory to pages at first touch.

        A large region is a mapping of its own: malloc could take it from memory that the process has used before, which
        it would have to clear, and would keep it when the model is closed.
        """
        size = self.nbytes + ALIGNMENT
        raw = map_zeroed(size) if size >= LARGE else np.zeros(size, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self.array = raw[start : start + self.nbytes]
        untouched_memory.register(self.array)

    @cached_property
    def address(self) -> int:
        """The address of the memory."""
        assert self.array is not None, "the graph is not finalized"
        return self.array.ctypes.data

    def view(self, dtype: type[np.generic]) -> NDArray[Any]:
        """Return the contents as an array of this dtype."""
        if dtype not in self._views:
            assert self.array is not None, "the graph is not finalized"
            self._views[dtype] = self.array.view(dtype)
        return self._views[dtype]


def map_zeroed(size: int) -> NDArray[np.uint8]:
    """Return an array in a new mapping, which ends with the array. Raises MemoryError if there is no memory for it."""
    try:
        return np.frombuffer(allocate_huge_pages(size), np.uint8)
    except OSError as error:
        raise MemoryError(f"{size:,} bytes cannot be allocated: {error.strerror}") from None


@dataclass(frozen=True, eq=False)
class Rows:
    """The number of rows that ops process: the tokens of a batch, some of them, or (token, expert) pairs.

    The count is in memory (`region`) and is at most `capacity`, or `small_batch_capacity` in a small batch. The count
    at `tokens` indicates whether the batch is small.
    """

    region: Region  # int64
    capacity: int
    small_batch_capacity: int
    tokens: Region

    def set(self, count: int) -> None:
        """Set the number of rows."""
        self.region.view(np.int64)[0] = count


@dataclass(eq=False)
class ConvertedActivations:
    """Another representation of a buffer's activations. It gets memory only if an op reads it; otherwise, kernels
    receive the address 0 and do not write it."""

    nbytes: int
    region: Region | None = None
    is_written: bool = False  # by the op that computes the activations, or by a conversion op after it


@dataclass(eq=False)
class Buffer:
    """Activations, float32 [rows][n], and their quantized and bfloat16 representations for matrix products."""

    floats: Region
    n: int
    rows: Rows
    quantized: ConvertedActivations
    bf16: ConvertedActivations
