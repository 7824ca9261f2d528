"""The weights of a naive forward pass that rounds activations as the kernels do, and nothing else.

Kernels multiply quantized weights with activations that they round to integers, with a scale for every 32 values
(`quant.matmul.activations`). That is part of what a product is, so the reference has the same inputs; otherwise the
cost of rounding, a hundred times that of 32-bit sums, would hide wrong results. Rounded inputs are read from the memory
of the graph. Those of experts are in an order that depends on the router, so they are rounded here.

Whether a value is rounded up or down can depend on the last bit of a float. `Rounding.FLIPPED` rounds all values for
which this is so the other way. The difference between both is what such ties can change in a result.
"""

from collections.abc import Mapping, MutableMapping
from enum import Enum

import numpy as np
from numpy.typing import DTypeLike, NDArray

from localinfer.gguf.reader import GGUF
from localinfer.naive import Floats, Model
from quant import FORMATS
from quant.matmul.layout import MAX_QUANT

PEAKS = {1: (1.0, 126 / 127, 125 / 127), 2: (1.0,)}  # fractions of the largest integer that scales are tried with
TIE = 2.0**-19  # of the largest of 32 values: an upper limit of the error of these values, as 32-bit floats have it
SIMILAR = 1e-4  # relative difference of the errors of two scales between which rounding may decide
WHOLE, CHUNK = 1 << 24, 1 << 23  # values of a matrix that is decoded at once, and of a chunk
DECODED_BYTES = 256 << 20  # of decoded matrices that are kept during an operation


class Rounding(Enum):
    """How ties are resolved."""

    NEAREST = "nearest"
    FLIPPED = "flipped"


class RoundedModel(Model):
    """Weights whose products round activations, with the `passes` of `ComputeGraph`.

    `inputs` are the inputs of matrices, by name, as the kernels have rounded them; others are rounded here. `decoded`
    are decoded rows, which several models share and `forget_matrices` clears. Names of tensors with values that are not
    finite are added to `not_finite`.
    """

    whole, chunk = WHOLE, CHUNK

    def __init__(
        self, f: GGUF, passes: int, dtype: DTypeLike = np.float64, rounding: Rounding = Rounding.NEAREST,
        decoded: MutableMapping[tuple[str, int, int], NDArray[np.float32]] | None = None,
    ) -> None:  # fmt: skip
        self.passes, self.rounding = passes, rounding
        self.decoded = {} if decoded is None else decoded
        self.inputs: Mapping[str, NDArray[np.float64]] = {}
        self.not_finite: dict[str, None] = {}
        super().__init__(f, dtype)

    def product(self, name: str, x: Floats, matrix: Floats) -> Floats:
        kind = FORMATS[self.tensor(name).type].activation_type(self.passes)
        given = self.inputs.get(name)
        if given is not None and given.shape == x.shape:
            x = given.astype(self.dtype)
        elif kind == "quantized":
            x = round_groups(x.astype(np.float64), self.passes, self.rounding).astype(self.dtype)
        elif kind == "bf16":
            x = round_to_bf16(x.astype(np.float64), self.rounding).astype(self.dtype)
        return super().product(name, x, matrix)

    def rows(self, name: str, rows: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.float32]:
        key = (name, rows.start or 0, rows.stop or -1) if isinstance(rows, slice) else None
        if key is not None and key in self.decoded:
            return self.decoded[key]
        result = super().rows(name, rows)
        if not np.isfinite(result).all():
            self.not_finite[name if self.has(name) else f"{name}.weight"] = None
        if key is not None and result.nbytes + sum(each.nbytes for each in self.decoded.values()) <= DECODED_BYTES:
            self.decoded[key] = result
        return result

    def forget_matrices(self) -> None:
        """Free the memory of decoded matrices."""
        self.decoded.clear()
        self.weights = {name: values for name, values in self.weights.items() if values.ndim == 1}


def round_groups(x: NDArray[np.float64], passes: int, rounding: Rounding) -> NDArray[np.float64]:
    """Return x with every 32 values of a row as integers times a scale: the one of a few that fits best.

    A scale is the least-squares fit to the integers, without its last two bits, which make sums exact.
    """
    groups = x.reshape(-1, 32)
    peak = np.abs(groups).max(axis=1, keepdims=True)
    top, results, errors = MAX_QUANT[passes], [], []
    for fraction in PEAKS[passes]:
        inverse = fraction * top / np.maximum(peak, top * 2.0**-126)
        scaled = groups * inverse
        nearest = np.rint(scaled)
        squares = (nearest**2).sum(axis=1, keepdims=True)
        factor = np.where(squares > 0, (nearest * scaled).sum(axis=1, keepdims=True) / np.maximum(squares, 1), 1.0)
        scale = (np.float32(factor / inverse).view(np.uint32) & np.uint32(0xFFFFFFFC)).view(np.float32)
        errors.append(((factor * nearest - scaled) ** 2).sum(axis=1) / fraction**2)
        if rounding is Rounding.FLIPPED:
            other = nearest + np.where(scaled > nearest, 1, -1)
            is_tie = np.abs(np.abs(scaled - nearest) - 0.5) <= TIE * top
            nearest = np.where(is_tie, other, nearest)
        results.append(nearest * scale)
    order = np.argsort(np.stack(errors), axis=0, kind="stable")
    chosen, rows = order[0], np.arange(len(groups))
    if rounding is Rounding.FLIPPED and len(errors) > 1:
        all_errors = np.stack(errors)
        first, second = all_errors[order[0], rows], all_errors[order[1], rows]
        squares = ((np.abs(groups) * top / np.maximum(peak, 2.0**-126)) ** 2).sum(axis=1)
        chosen = np.where(second - first <= SIMILAR * first + TIE * squares, order[1], chosen)
    rounded: NDArray[np.float64] = np.stack(results)[chosen, rows].reshape(x.shape)
    return rounded


def round_to_bf16(x: NDArray[np.float64], rounding: Rounding) -> NDArray[np.float64]:
    """Return x rounded to bfloat16, floats with 8 bits of precision, half to even; with `FLIPPED`, of values that are
    larger by the width of a tie."""
    bits = (x if rounding is Rounding.NEAREST else x * (1 + TIE)).astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)
