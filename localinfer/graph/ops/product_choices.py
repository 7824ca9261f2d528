"""The choices of a compute graph for its matrix products, which are made by measuring
(`localinfer.runtime.row_access`)."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from localinfer.graph.ops.buffers import Region
from quant.matmul.row_access import ROW_ACCESS_WORDS, RowAccess, default_row_access


class ProductShape(NamedTuple):
    """What the fastest way to read the rows of a matrix depends on: ggml's type number, the columns of a row, and the
    passes of the quantized activations."""

    type: int
    n_in: int
    passes: int


class ProductChoices:
    """How the products of each shape read rows, and how the register tiles of each tensor type make floats of integer
    sums. Results have the same bits with any choice. None may change during a run.

    `regions` have the choices of a shape where the kernels read them, `quant.matmul.row_access.PRODUCT_CHOICE_WORDS`
    numbers.
    """

    def __init__(self) -> None:
        self.regions: dict[ProductShape, Region] = {}

    def reset(self) -> None:
        """Choose the defaults."""
        self.set_accesses(dict.fromkeys(self.regions, default_row_access()))
        self.set_subtractions({shape.type: False for shape in self.regions})

    @property
    def accesses(self) -> dict[ProductShape, RowAccess]:
        """How products read rows, by shape."""
        numbers = {shape: region.view(np.int64)[:ROW_ACCESS_WORDS] for shape, region in self.regions.items()}
        return {shape: RowAccess(*each.tolist()) for shape, each in numbers.items()}

    def set_accesses(self, accesses: Mapping[ProductShape, RowAccess]) -> None:
        """Choose how products of some shapes read rows. Those that the graph does not have are ignored."""
        for shape in accesses.keys() & self.regions.keys():
            self.regions[shape].view(np.int64)[:ROW_ACCESS_WORDS] = accesses[shape]

    @property
    def subtractions(self) -> dict[int, bool]:
        """Whether register tiles subtract to make floats of integer sums, by tensor type: see
        `quant.matmul.layout.has_two_conversions`."""
        return {shape.type: bool(each.view(np.int64)[ROW_ACCESS_WORDS]) for shape, each in self.regions.items()}

    def set_subtractions(self, subtractions: Mapping[int, bool]) -> None:
        """Choose how the register tiles of some tensor types make floats of integer sums."""
        for shape, region in self.regions.items():
            if shape.type in subtractions:
                region.view(np.int64)[ROW_ACCESS_WORDS] = subtractions[shape.type]
