"""The arguments of an op by name, as arrays: of buffers from a `Memory`, of tensors decoded in plain numpy."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer, Region
from localinfer.graph.ops.op import Op
from localinfer.naive.formulas import Floats
from localinfer.naive.tensor_types import decode

CHUNK = 1 << 23  # values of a matrix that are decoded at once


class Memory(Protocol):
    """What the ops of a graph read, in floats of `dtype`."""

    dtype: np.dtype[Any]

    def floats(self, region: Region) -> Floats:
        """Return the values of a region, as a vector. The caller does not change them."""

    def heads(self, region: Region) -> Floats:
        """Return the keys or values of a cache, (heads, rows, size)."""

    def product_input(self, op: Op) -> Floats:
        """Return the rows that a matrix product multiplies, (rows, n_in)."""


class OpArguments:
    """The arguments of an op. It computes `count` rows."""

    def __init__(self, op: Op, memory: Memory) -> None:
        self.op, self.memory = op, memory
        self.given = dict(zip(op.small_batch.parameters, op.arguments, strict=True))
        self.constants = dict(op.small_batch.constants)
        self.count = op.rows.capacity

    def has(self, name: str) -> bool:
        """Return whether an argument is given: a missing one is the address 0."""
        return not isinstance(self.given[name], int)

    def number(self, name: str) -> float:
        value = self.given[name]
        assert isinstance(value, int | float)
        return value

    def integer(self, name: str) -> int:
        value = self.given[name]
        assert isinstance(value, int)
        return value

    def text(self, name: str) -> str:
        """Return a constant that is compiled into the kernel."""
        return str(self.constants[name])

    # --- activations ---

    def all_rows(self, name: str) -> Floats:
        """Return a copy of all rows of a buffer, (rows, n)."""
        buffer = self.given[name]
        assert isinstance(buffer, Buffer)
        return self.memory.floats(buffer.floats)[: buffer.rows.capacity * buffer.n].reshape(-1, buffer.n).copy()

    def rows(self, name: str) -> Floats:
        """Return a copy of the rows of a buffer that the op computes, (count, n)."""
        return self.all_rows(name)[: self.count]

    def heads(self, name: str) -> Floats:
        """Return the keys or values of a cache, (heads, rows, size)."""
        region = self.given[name]
        assert isinstance(region, Region)
        return self.memory.heads(region)

    # --- constants ---

    def numbers(self, name: str, count: int) -> NDArray[np.int32]:
        """Return the first integers of a region."""
        region = self.given[name]
        assert isinstance(region, Region)
        values: NDArray[np.int32] = region.view(np.int32)[:count]
        return values

    def table(self, name: str, *shape: int) -> Floats:
        """Return the first values of a tensor or of a region that has constants."""
        given, count = self.given[name], int(np.prod(shape))
        assert isinstance(given, Tensor | Region)
        source = given.data.view(np.float32) if isinstance(given, Tensor) else given.view(np.float32)
        values: Floats = source[:count].astype(self.memory.dtype)
        return values.reshape(shape)

    def vector(self, name: str) -> Floats | float:
        """Return the values of a float32 tensor; 0 if there is none."""
        tensor = self.given[name]
        if not isinstance(tensor, Tensor):
            return 0.0
        values: Floats = tensor.data.view(np.float32).astype(self.memory.dtype)
        return values

    def matrix(self, name: str) -> Iterator[tuple[slice, Floats]]:
        """Yield some rows of a matrix after the other: their numbers and values, (rows, n_in)."""
        tensor = self.given[name]
        assert isinstance(tensor, Tensor)
        n_out, n_in = tensor.shape
        step = max(1, CHUNK // n_in)
        blocks = tensor.data.reshape(n_out, -1)
        for first in range(0, n_out, step):
            rows = slice(first, min(first + step, n_out))
            values = decode(blocks[rows], tensor.type)
            yield rows, values.astype(self.memory.dtype)
