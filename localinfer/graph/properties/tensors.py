"""The tensors of a model file, checked by name, shape and type when a builder first uses them."""

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError
from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.reader import GGUF, Tensor
from quant import FORMATS
from quant.ggml import TYPE_NUMBERS, TYPES

KIND = re.compile(r"(?:indexer\.)?[^.]+$")  # in the name of a matrix or a norm


class Tensors:
    """Returns tensors and tracks which of them are used. A tensor that is never used means that the graph is not the
    model in the file."""

    def __init__(self, f: GGUF, block_count: int) -> None:
        self.f = f
        self._block_count = block_count
        self._used: set[str] = set()
        self._has_bias: dict[str, bool] = {}  # by kind of matrix or norm

    def has(self, name: str) -> bool:
        """Return whether the file has a tensor of this name."""
        return name in self.f.tensors

    def full_name(self, name: str) -> str:
        """Return the tensor name of a weight: with the suffix `.weight`, which some tensors lack."""
        return name if self.has(name) else f"{name}.weight"

    def accept(self, *names: str) -> None:
        """Accept these tensors even if nothing reads them."""
        self._used.update(names)

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Return a tensor, which must have this shape and a supported type.

        Raises LocalInferError naming the tensor if it is missing or has another shape, UnsupportedError if its type has
        no kernels.
        """
        if name not in self.f.tensors:
            raise self.f.error(f"tensor {name}", "is missing")
        found = self.f.tensors[name]
        if found.shape != shape:
            raise self.f.error(f"tensor {name}", f"has shape {list(found.shape)}, not {list(shape)}")
        if found.type not in FORMATS:
            known = ", ".join(TYPES[number].name for number in FORMATS)
            what = f"type {found.type_name} is not supported (only {known})"
            raise self.f.error(f"tensor {name}", f"{what}; `localinfer inspect` lists all types", UnsupportedError)
        self._used.add(name)
        return found

    def matrices(self, name: str, count: int, n_out: int, n_in: int) -> Tensor:
        """Return a tensor of matrices, which the file may also have as the rows of one matrix."""
        if name in self.f.tensors and self.f.tensors[name].shape == (count * n_out, n_in):
            return replace(self.tensor(name, count * n_out, n_in), shape=(count, n_out, n_in))
        return self.tensor(name, count, n_out, n_in)

    def vector(self, name: str, n: int) -> Tensor:
        """Return a float32 tensor of shape (n,)."""
        return self.floats(name, n)

    def floats_beside_ones(self, name: str, *shape: int) -> Tensor:
        """Return a float32 tensor of this shape, in which the file may have further dimensions of 1, or lack some."""
        stored = self.f.tensors[name].shape if name in self.f.tensors else shape
        same = [n for n in stored if n != 1] == [n for n in shape if n != 1]
        return self.floats(name, *(stored if same else shape))

    def numbers_beside_ones(self, name: str, *shape: int) -> Tensor:
        """Return a tensor as `floats_beside_ones`, which may have another type: then it is converted."""
        found = self.f.tensors.get(name)
        if found is None or found.type_name == "F32":
            return self.floats_beside_ones(name, *shape)
        return constant_tensor(name, dequantize(self.tensor(name, *shape)))

    def rows_from(self, name: str, n_rows: int) -> Tensor:
        """Return a matrix of at least `n_rows` rows, whose length is a multiple of 32."""
        found = self.f.tensors.get(name)
        if found is None or len(found.shape) != 2 or found.shape[0] < n_rows or found.shape[1] % 32:
            what = "is missing" if found is None else f"has shape {list(found.shape)}"
            what = f"{what}; it must have {n_rows} rows or more, of a multiple of 32 values"
            raise self.f.error(f"tensor {name}", what)
        return self.tensor(name, *found.shape)

    def floats(self, name: str, *shape: int) -> Tensor:
        """Return a float32 tensor of this shape."""
        found = self.tensor(name, *shape)
        if found.type_name != "F32":
            raise self.f.error(f"tensor {name}", f"has type {found.type_name}; it must be F32")
        return found

    @property
    def n_vocab(self) -> int:
        """The number of rows of the token embedding."""
        embedding = self.f.tensors.get("token_embd.weight")
        return embedding.shape[0] if embedding is not None else 0

    def n_rows(self, name: str) -> int:
        """Return the number of rows of a matrix whose output is the input of another matrix. Raises LocalInferError
        unless it is a multiple of 32."""
        tensor = self.f.tensors.get(f"{name}.weight")
        if tensor is None:
            raise self.f.error(f"tensor {name}.weight", "is missing")
        if tensor.shape[0] % 32:
            what = f"has {tensor.shape[0]} rows; they must be a multiple of 32"
            raise self.f.error(f"tensor {name}.weight", what)
        return tensor.shape[0]

    def bias(self, name: str, *shape: int) -> Tensor | None:
        """Return the bias of a matrix or a norm, if the file has it. Either all layers have it or none."""
        kind = KIND.findall(name)[-1]
        return self.floats(f"{name}.bias", *shape) if self.has_bias(kind) else None

    def has_bias(self, kind: str) -> bool:
        """Return whether a matrix or norm of this kind has a bias in any layer."""
        if kind not in self._has_bias:
            names = [kind, *(f"blk.{number}.{kind}" for number in range(self._block_count))]
            self._has_bias[kind] = any(self.has(f"{each}.bias") for each in names)
        return self._has_bias[kind]

    def require_bias(self, *kinds: str) -> None:
        """Require a bias of all matrices of these kinds."""
        self._has_bias.update(dict.fromkeys(kinds, True))

    def scalar(self, name: str) -> float:
        """Return the only value of a tensor."""
        return float(self.vector(name, 1).data.view(np.float32)[0])

    def scale(self, name: str) -> float:
        """Return the factor for the products of a matrix: `<name>.scale` if the file has it, as with NVFP4, else 1.
        Input scales, which are only used in training, are ignored."""
        scale = f"{name}.scale"
        self.accept(f"{name}.input_scale")
        if scale not in self.f.tensors or self.f.tensors[scale].shape != (1,):
            return 1.0
        value = self.scalar(scale)
        if not np.isfinite(value):
            raise self.f.error(f"tensor {scale}", "is not finite")
        return value

    def positive_vector(self, name: str, n: int) -> NDArray[np.float64]:
        """Return the values of a vector as float64. Raises LocalInferError unless all are finite and positive."""
        values: NDArray[np.float32] = self.vector(name, n).data.view(np.float32)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise self.f.error(f"tensor {name}", "has factors that are not positive numbers")
        return values.astype(np.float64)

    def reject_unused(self) -> None:
        """Raise UnsupportedError for a tensor that the graph does not use."""
        unused = sorted(set(self.f.tensors) - self._used)
        if unused:
            what = f"is not used by the supported {self.f.get('general.architecture', str)} architecture"
            raise self.f.error(f"tensor {unused[0]}", what, UnsupportedError)


def constant_tensor(name: str, values: NDArray[np.float32]) -> Tensor:
    """Return numbers that no file has, but that the architecture determines, as a tensor."""
    return Tensor(name, values.shape, TYPE_NUMBERS["F32"], values.reshape(-1).view(np.uint8), 0)


def constant_integers(name: str, values: NDArray[np.int64]) -> Tensor:
    """Return integers that the metadata determines as a tensor."""
    return Tensor(name, values.shape, TYPE_NUMBERS["I64"], values.view(np.uint8), 0)


def matrix_slice(tensor: Tensor, number: int) -> Tensor:
    """Return one matrix of a 3D tensor as a view."""
    row = row_slice(tensor, number, 1)
    return replace(row, shape=row.shape[1:])


def row_slice(tensor: Tensor, first: int, count: int) -> Tensor:
    """Return adjacent rows of a matrix as a view."""
    row_bytes = tensor.nbytes // tensor.shape[0]
    data = tensor.data[first * row_bytes : (first + count) * row_bytes]
    return replace(tensor, shape=(count, *tensor.shape[1:]), data=data, offset=tensor.offset + first * row_bytes)
