"""The tensors of a file, checked by name, shape and type when an architecture first mentions them."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import Unsupported
from localinfer.files.gguf import GGUF, Tensor
from quant import FORMATS
from quant.ggml import TYPES


class Tensors:
    """Remembers which tensors were mentioned: those that are not would be a model that is not the one in the file."""

    def __init__(self, f: GGUF) -> None:
        self.f = f
        self._mentioned: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self.f.tensors

    def named(self, name: str) -> str:
        """What a file calls the weights of this name: most have an ending, which some leave out."""
        return name if self.has(name) else f"{name}.weight"

    def mention(self, *names: str) -> None:
        """These are understood, even if they are not used this time."""
        self._mentioned.update(names)

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor of that name, which must have this shape and a type that can be computed with.

        Raises LocalInferError naming the tensor, Unsupported for a type that has no kernels.
        """
        if name not in self.f.tensors:
            raise self.f.error(f"tensor {name}", "is missing")
        found = self.f.tensors[name]
        if found.shape != shape:
            raise self.f.error(f"tensor {name}", f"has shape {list(found.shape)}, not {list(shape)}")
        if found.type not in FORMATS:
            known = ", ".join(TYPES[number].name for number in FORMATS)
            what = f"type {found.type_name} is not supported (only {known})"
            raise self.f.error(f"tensor {name}", f"{what}; `localinfer inspect` lists all types", Unsupported)
        self._mentioned.add(name)
        return found

    def vector(self, name: str, n: int) -> Tensor:
        """A tensor of n float32 numbers."""
        return self.floats(name, n)

    def vector_or_row(self, name: str, n: int) -> Tensor:
        """The same, or a matrix whose only row they are."""
        is_row = name in self.f.tensors and self.f.tensors[name].shape == (1, n)
        return self.floats(name, *((1, n) if is_row else (n,)))

    def floats(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape, of float32 numbers."""
        found = self.tensor(name, *shape)
        if found.type_name != "F32":
            raise self.f.error(f"tensor {name}", f"has type {found.type_name}; it must be F32")
        return found

    def positive(self, name: str, n: int) -> NDArray[np.float64]:
        """The values of a vector, all of them finite and above 0."""
        values: NDArray[np.float32] = self.vector(name, n).data.view(np.float32)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise self.f.error(f"tensor {name}", "has factors that are not positive numbers")
        return values.astype(np.float64)

    def refuse_unmentioned(self) -> None:
        """Raise Unsupported for a tensor that this forward pass ignores."""
        unused = sorted(set(self.f.tensors) - self._mentioned)
        if unused:
            what = f"is not part of the {self.f.get('general.architecture', str)} architecture as it is supported"
            raise self.f.error(f"tensor {unused[0]}", what, Unsupported)


def matrix_of(tensor: Tensor, number: int) -> Tensor:
    """One of many matrices: the same bytes, under the same name."""
    part = rows_of(tensor, number, 1)
    return replace(part, shape=part.shape[1:])


def rows_of(tensor: Tensor, first: int, count: int) -> Tensor:
    """Some neighbouring rows of a matrix, as a matrix: the same bytes, under the same name."""
    row_bytes = tensor.nbytes // tensor.shape[0]
    data = tensor.data[first * row_bytes : (first + count) * row_bytes]
    return replace(tensor, shape=(count, *tensor.shape[1:]), data=data, offset=tensor.offset + first * row_bytes)
