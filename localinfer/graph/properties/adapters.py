"""Adapters of a model: low-rank changes of its matrices, and vectors that are added to the residual stream.

A LoRA adapter (Hu et al., 2021) changes the product with a matrix W of the model:

    y = W x + scale * factor * B (A x)        A: (rank, n_in), B: (n_out, rank)

`factor` is alpha / rank, or what else the adapter's file says; the scale is the user's, and each sequence has its own.
The weights of the model stay as they are. Of an embedding matrix, A has a row for each token:

    row = W[token] + scale * factor * B A[token]        A: (n_vocab, rank), B: (n, rank)

All adapters that change a matrix are computed as one: their matrices are stacked along the rank, of which each adapter
has a multiple of 16, filled up with zeros. A control vector is added to the residual stream after a layer.
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
from quant import ggml

RANK_STEP, RANK_MULTIPLE = 16, 32  # of each adapter, and of all together: what the kernels multiply at a time
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


class LowRankChange(NamedTuple):
    """What all adapters change in a tensor: the stacked A, (rank, n_in), and B, (n_out, rank), and for each 16 of the
    rank the number of the adapter, int32, and the factor, float32. Of embeddings, A is (n_vocab, rank)."""

    a: Tensor
    b: Tensor
    owners: Tensor
    factors: Tensor


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
            self._stacked[name] = stack(name, self.pairs[name])
        return self._stacked.get(name)

    def direction(self, layer: int) -> Tensor | None:
        """Return the vector to add to the residual stream after a layer, or None."""
        values = self.directions.get(layer)
        return None if values is None else as_tensor(f"control_vector.{layer}", values)

    def reject_unapplied(self, applied: Collection[str]) -> None:
        """Raise UnsupportedError for a tensor whose changes the graph does not compute."""
        for name in self.pairs.keys() - set(applied):
            path = self.paths[self.pairs[name][0].adapter]
            raise UnsupportedError(f"{printable(str(path))}: {printable(name, 80)}: adapters of it are not supported")


def stack(name: str, pairs: Sequence[LowRankPair]) -> LowRankChange:
    """Return the change that adapters make together in the tensor of this name."""
    sizes = [round_up(pair.rank, RANK_STEP) for pair in pairs]
    owners = np.repeat(np.array([pair.adapter for pair in pairs], np.int32), [size // RANK_STEP for size in sizes])
    factors = np.repeat(np.array([pair.factor for pair in pairs], np.float32), [size // RANK_STEP for size in sizes])
    rest = (round_up(sum(sizes), RANK_MULTIPLE) - sum(sizes)) // RANK_STEP
    a_axis = -1 if name == EMBEDDINGS else -2
    return LowRankChange(
        as_tensor(f"{name}.lora_a", joined([pair.a for pair in pairs], sizes, a_axis)),
        as_tensor(f"{name}.lora_b", joined([pair.b for pair in pairs], sizes, -1)),
        as_tensor(f"{name}.lora_owners", np.pad(owners, (0, rest))),
        as_tensor(f"{name}.lora_factors", np.pad(factors, (0, rest))),
    )


def joined(matrices: Sequence[Floats], sizes: Sequence[int], axis: int) -> Floats:
    """Return the matrices one after another along an axis, each filled up with zeros to its size, and all together to a
    multiple of RANK_MULTIPLE. They are float16 if all of them are."""
    shape = list(matrices[0].shape)
    shape[axis] = round_up(sum(sizes), RANK_MULTIPLE)
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
