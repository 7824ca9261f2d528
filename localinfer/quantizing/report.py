"""What quantizing cost: for every tensor, how far what was written is from what was read.

    report = Report(mixture)
    quantize(..., watch=report)
    report.as_object()

While a tensor is quantized its blocks are decoded again, and the sums are taken from which every figure follows. What a
reader is shown of them is in `localinfer.quantizing.report_page`.
"""

import math
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from localinfer.files.source import SourceTensor
from localinfer.quantizing.mixture import Mixture
from localinfer.quantizing.rows import Bytes, Floats, Matrix, decoder_of
from quant import ggml

BLOCK = re.compile(r"^blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Sums:
    """Over all weights x, what has become of them y, and the importance w of their columns."""

    n: int = 0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0
    ee: float = 0.0  # squares of errors, y - x
    wxx: float = 0.0
    wee: float = 0.0
    worst: float = 0.0  # the largest error

    def __add__(self, other: "Sums") -> "Sums":
        added = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return replace(Sums(**added), worst=max(self.worst, other.worst))

    @classmethod
    def of(cls, x: Floats, y: Floats, w: Floats | None) -> "Sums":
        """Of some rows; w has a value for each column, or is None where all count alike."""
        exact, error = x.astype(np.float64), y.astype(np.float64) - x
        xx, ee = np.square(exact), np.square(error)
        weights = np.ones(x.shape[1]) if w is None else w.astype(np.float64)
        return cls(
            x.size,
            float(xx.sum()),
            float(np.square(y, dtype=np.float64).sum()),
            float((exact * y).sum()),
            float(ee.sum()),
            float(xx.sum(axis=0) @ weights),
            float(ee.sum(axis=0) @ weights),
            float(abs(error).max(initial=0.0)),
        )


@dataclass(frozen=True, slots=True)
class TensorReport:
    """The figures of one tensor: None where there is nothing to tell, such as the error of one that was copied."""

    name: str
    layer: int | None
    kind: str  # what it is in every layer: attn_q
    shape: tuple[int, ...]
    old_type: str
    new_type: str
    bits: float  # a weight, in the new file
    nbytes: int
    rmse: float | None = None
    largest_error: float | None = None
    relative_error: float | None = None  # the root of the errors' squares over the weights' squares
    weighted_error: float | None = None  # the same with the importance of each column; only where it is known
    cosine: float | None = None
    sqnr: float | None = None  # dB; None, too, where there is no error at all


class Report:
    """A watcher for `quantize`, which calls it from several threads."""

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self._sums: dict[str, Sums] = {}
        self._lock = threading.Lock()

    def __call__(self, matrix: Matrix, _: int, x: Floats, out: Bytes) -> None:
        """Rows x of a matrix have become the blocks `out`."""
        name, y = matrix.tensor.name, np.empty_like(x)
        decoder_of(matrix.type).rows(out.reshape(-1), y)
        importance = self._mixture.importance.get(name)
        sums = Sums.of(x, y, None if importance is None else importance[matrix.number])
        with self._lock:
            self._sums[name] = self._sums.get(name, Sums()) + sums

    def tensors(self) -> Iterator[TensorReport]:
        """In the order of the file."""
        return map(self._tensor, self._mixture.source.tensors.values())

    def _tensor(self, tensor: SourceTensor) -> TensorReport:
        number, block = self._mixture.types[tensor.name], BLOCK.match(tensor.name)
        nbytes = ggml.nbytes(number, tensor.n_elements)
        weighted = tensor.name in self._mixture.importance
        return TensorReport(
            name=tensor.name,
            layer=int(block[1]) if block else None,
            kind=BLOCK.sub("", tensor.name).removesuffix(".weight"),
            shape=tensor.shape,
            old_type=tensor.type_name,
            new_type=ggml.TYPES[number].name,
            bits=8 * nbytes / max(1, tensor.n_elements),
            nbytes=nbytes,
            **figures(self._sums.get(tensor.name), weighted),
        )

    def as_object(self) -> dict[str, Any]:
        """Everything, ready to be written as JSON."""
        tensors = list(self.tensors())
        old = sum(tensor.nbytes for tensor in self._mixture.source.tensors.values())
        new, weights = sum(each.nbytes for each in tensors), sum(math.prod(each.shape) for each in tensors)
        whole = sum(self._sums.values(), Sums())
        return {
            "source": str(self._mixture.source.path),
            "old_nbytes": old,
            "nbytes": new,
            "weights": weights,
            "old_bits": 8 * old / max(1, weights),
            "bits": 8 * new / max(1, weights),
            **figures(whole, bool(self._mixture.importance)),
            "tensors": [*map(asdict, tensors)],
        }


def figures(sums: Sums | None, weighted: bool) -> dict[str, float | None]:
    """The fields of `TensorReport` that sums tell of; none for tensors that were copied."""
    if sums is None or not sums.n:
        return {}
    return {
        "rmse": math.sqrt(sums.ee / sums.n),
        "largest_error": sums.worst,
        "relative_error": math.sqrt(sums.ee / sums.xx) if sums.xx else None,
        "weighted_error": math.sqrt(sums.wee / sums.wxx) if weighted and sums.wxx else None,
        "cosine": sums.xy / math.sqrt(sums.xx * sums.yy) if sums.xx and sums.yy else None,
        "sqnr": 10 * math.log10(sums.xx / sums.ee) if sums.xx and sums.ee else None,
    }
