"""Values that differ between layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from localinfer.graph.properties.model_properties import Block

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class PerLayer(Generic[T]):
    """A value for each layer, `specs[blk]`, and one for the MTP layers, which follow the others. Families without MTP
    layers state none (None)."""

    values: Sequence[T]
    mtp: T | None = None

    def __getitem__(self, blk: Block) -> T:
        """Return the value of a layer."""
        if not blk.is_mtp:
            return self.values[blk.number]
        assert self.mtp is not None, "there is no value for MTP layers"
        return self.mtp

    def map(self, function: Callable[[T], U]) -> "PerLayer[U]":
        """Return what the function makes of each value."""
        return PerLayer([function(each) for each in self.values], None if self.mtp is None else function(self.mtp))

    def choose(self: "PerLayer[bool]", yes: U, no: U) -> "PerLayer[U]":
        """Return `yes` for each layer whose value is true, and `no` for the others."""
        return self.map(lambda value: yes if value else no)
