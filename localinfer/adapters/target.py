"""What an adapter must fit: the architecture of a model, and the shapes of its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.file_types import SCALE_PAIRS
from localinfer.gguf.reader import GGUF
from localinfer.gguf.source import Source


class Shaped(Protocol):
    """A tensor of a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, eq=False)
class Target:
    """A model that an adapter is for. `numbers` are the metadata keys without the architecture whose values are
    integers, or one integer per layer. If it `has_scale_pairs`, its matrices have other inputs than those of the model
    it was made from."""

    architecture: str
    tensors: Mapping[str, Shaped]
    numbers: Mapping[str, int | tuple[int, ...]]
    has_scale_pairs: bool

    @classmethod
    def of_file(cls, f: GGUF) -> Self:
        """Return that of an open GGUF file."""
        return cls._make(f.get("general.architecture", str), f.tensors, f.metadata)

    @classmethod
    def of_source(cls, source: Source) -> Self:
        """Return that of a model that is being written."""
        field = source.fields.get("general.architecture")
        name = field.value if field and isinstance(field.value, bytes) else b""
        values = {key: field.value for key, field in source.fields.items()}
        return cls._make(name.decode("utf-8", "replace"), source.tensors, values)

    @classmethod
    def _make(cls, architecture: str, tensors: Mapping[str, Shaped], metadata: Mapping[str, object]) -> Self:
        prefix = f"{architecture}."
        found = {key.removeprefix(prefix): integers(each) for key, each in metadata.items() if key.startswith(prefix)}
        numbers = {key: value for key, value in found.items() if value is not None}
        return cls(architecture, tensors, numbers, metadata.get(SCALE_PAIRS) is True)

    def number(self, key: str, layer: int = 0) -> int:
        """Return a number of the metadata, of one layer if they differ. Raises LocalInferError if it is missing."""
        value = self.numbers.get(key)
        if isinstance(value, tuple):
            value = value[layer] if layer < len(value) else None
        if value is None:
            raise LocalInferError(f"{printable(self.architecture, 80)}.{key}: is missing")
        return value

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor that adapters may change, or None. An output layer that shares the weights of
        the embedding can be changed on its own."""
        tensor = self.tensors.get(name)
        if tensor is None and name == "output.weight":
            tensor = self.tensors.get("token_embd.weight")
        return tensor.shape if tensor is not None else None


def integers(value: object) -> int | tuple[int, ...] | None:
    """Return an integer or an array of integers of the metadata; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        return tuple(value.tolist())
    return None
