"""Adapters of a model: low-rank changes of its matrices, and vectors that are added to the residual stream.

A LoRA adapter (Hu et al., 2021) changes the product with a matrix W of the model:

    y = W x + scale * factor * B (A x)        A: (rank, n_in), B: (n_out, rank)

`factor` is alpha / rank, or another factor that the adapter's file names. The user sets the scale, for each sequence.
The weights of the model stay as they are. Of an embedding matrix, A has a row for each token:

    row = W[token] + scale * factor * B A[token]        A: (n_vocab, rank), B: (n, rank)

All adapters that change a matrix are computed as one: their matrices are stacked along the rank, of which each adapter
has a multiple of 16, filled up with zeros. B is read in panels of 16 rows (`localinfer.kernels.low_rank`). A control
vector is added to the residual stream after a layer.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.reader import Tensor
from localinfer.kernels.layout import LOW_RANK_PANEL
from quant import ggml

RANK_STEP = 16  # the rank of each adapter is a multiple of it: what the kernels multiply at a time
DIGEST_BYTES, ALIGNMENT = 32, 64
EMBEDDINGS = "token_embd.weight"  # whose rows are looked up

Floats = NDArray[np.floating[Any]]  # float32 or float16


class LowRankPair(NamedTuple):
    """The matrices of one adapter for a tensor, and the factor of their product. `adapter` is the adapter's number.

    With experts, both have a first dimension for them.
    """

    adapter: int
    a: Floats
    b: Floats
    factor: float

    @property
    def rank(self) -> int:
        """The number of columns of B."""
        return int(self.b.shape[-1])


class LowRankChange:
    """What all adapters change in the tensor of this name: the stacked A, (rank, n_in), and B, (n_out, rank). With
    experts, both have a first dimension for them; of embeddings, A is (n_vocab, rank).

    For each 16 of the rank, `owners` has the number of the adapter, int32, and `factors` the factor, float32.
    """

    def __init__(self, name: str, pairs: Sequence[LowRankPair]) -> None:
        self.name, self._pairs, self._panels = name, pairs, dict[tuple[int, int], Tensor]()
        self._sizes = [round_up(pair.rank, RANK_STEP) for pair in pairs]
        repeats = [size // RANK_STEP for size in self._sizes]
        owners = np.repeat(np.array([pair.adapter for pair in pairs], np.int32), repeats)
        factors = np.repeat(np.array([pair.factor for pair in pairs], np.float32), repeats)
        self.owners = as_tensor(f"{name}.lora_owners", owners)
        self.factors = as_tensor(f"{name}.lora_factors", factors)

    @property
    def rank(self) -> int:
        """The rank of all adapters together."""
        return sum(self._sizes)

    @cached_property
    def a(self) -> Tensor:
        """The stacked A."""
        return as_tensor(f"{self.name}.lora_a", self.stacked_a())

    def stacked_a(self) -> Floats:
        """Return the stacked A as an array."""
        axis = -1 if self.name == EMBEDDINGS else -2
        return joined([pair.a for pair in self._pairs], self._sizes, axis)

    @cached_property
    def b(self) -> Tensor:
        """The stacked B."""
        return as_tensor(f"{self.name}.lora_b", joined([pair.b for pair in self._pairs], self._sizes, -1))

    def panels(self, first: int, count: int) -> Tensor:
        """Return the rows of B from `first` on as panels of 16 rows, (panels, rank, 16), filled up with zeros."""
        if (first, count) not in self._panels:
            b = joined([pair.b[first : first + count] for pair in self._pairs], self._sizes, -1)
            padded = np.pad(b, ((0, -count % LOW_RANK_PANEL), (0, 0)))
            panels = padded.reshape(-1, LOW_RANK_PANEL, b.shape[1]).swapaxes(1, 2)
            self._panels[first, count] = as_tensor(f"{self.name}.lora_b", panels)
        return self._panels[first, count]


@dataclass(frozen=True, eq=False)
class Adapters:
    """The adapters with which a model is loaded.

    `scales` are those of the LoRA adapters unless a run has others; `pairs` are their matrices by the name of the
    tensor, `directions` the vectors to add after layers, float32 (n,). `paths` are the files of the LoRA adapters.
    """

    paths: Sequence[Path]
    scales: tuple[float, ...]
    pairs: Mapping[str, Sequence[LowRankPair]]
    directions: Mapping[int, NDArray[np.float32]]
    _stacked: dict[str, LowRankChange] = field(default_factory=dict)
    _stacked_a: dict[tuple[str, ...], Tensor] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """A digest of what the adapters change, without the scales of the LoRA adapters."""
        digest = blake2b(digest_size=DIGEST_BYTES)
        for name, pairs in sorted(self.pairs.items()):
            for pair in pairs:
                parts = (pair.a, pair.b)
                shapes = [(each.shape, each.dtype.str) for each in parts]
                digest.update(repr((name, pair.adapter, pair.factor, shapes)).encode())
                for each in parts:
                    digest.update(np.ascontiguousarray(each).data)
        for layer, direction in sorted(self.directions.items()):
            digest.update(repr((layer, direction.shape)).encode())
            digest.update(direction.data)
        return digest.hexdigest()

    @property
    def nbytes(self) -> int:
        """The size of all matrices and vectors, without what stacking fills up."""
        matrices = [each for pairs in self.pairs.values() for pair in pairs for each in (pair.a, pair.b)]
        return sum(each.nbytes for each in (*matrices, *self.directions.values()))

    def low_rank(self, name: str) -> LowRankChange | None:
        """Return the change of a tensor, or None."""
        if name not in self._stacked and name in self.pairs:
            self._stacked[name] = LowRankChange(name, self.pairs[name])
        return self._stacked.get(name)

    def stacked_a(self, changes: Sequence[LowRankChange]) -> Tensor:
        """Return the stacked A of the changes of products with the same input, one after another, (ranks, n_in)."""
        names = tuple(change.name for change in changes)
        if names not in self._stacked_a:
            matrices = [change.stacked_a() for change in changes]
            self._stacked_a[names] = as_tensor(f"{names[0]}.lora_a", np.concatenate(matrices))
        return self._stacked_a[names]

    def direction(self, layer: int) -> Tensor | None:
        """Return the vector to add to the residual stream after a layer, or None."""
        values = self.directions.get(layer)
        return None if values is None else as_tensor(f"control_vector.{layer}", values)

    def reject_unapplied(self, applied: Collection[str]) -> None:
        """Raise UnsupportedError for a tensor whose changes the graph does not compute."""
        for name in self.pairs.keys() - set(applied):
            path = self.paths[self.pairs[name][0].adapter]
            raise UnsupportedError(f"{printable(str(path))}: {printable(name, 80)}: adapters of it are not supported")


def joined(matrices: Sequence[Floats], sizes: Sequence[int], axis: int) -> Floats:
    """Return the matrices one after another along an axis, each filled up with zeros to its size. They are float16 if
    all of them are."""
    shape = list(matrices[0].shape)
    shape[axis] = sum(sizes)
    half = all(each.dtype == np.float16 for each in matrices)
    result: Floats = np.zeros(shape, np.float16 if half else np.float32)
    whole, at = np.moveaxis(result, axis, 0), 0
    for matrix, size in zip(matrices, sizes, strict=True):
        whole[at : at + matrix.shape[axis]] = np.moveaxis(matrix, axis, 0)
        at += size
    return result


def as_tensor(name: str, values: NDArray[Any]) -> Tensor:
    """Return an array as a tensor, whose memory is aligned to a cache line."""
    memory = np.empty(values.nbytes + ALIGNMENT, np.uint8)
    data = memory[-memory.ctypes.data % ALIGNMENT :][: values.nbytes]
    data[:] = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    kind = {"f4": "F32", "f2": "F16", "i4": "I32"}[values.dtype.str[1:]]
    return Tensor(name, values.shape, ggml.TYPE_NUMBERS[kind], data, 0)


def round_up(n: int, multiple: int) -> int:
    """Return the next multiple."""
    return -(-n // multiple) * multiple
