"""The quantization report: for every tensor, the difference between the original and the quantized weights.

    report = Report(plan)
    quantize(..., observer=report)
    report.to_dict()

During quantization, encoded rows are decoded again and the sums are collected from which all metrics follow.
`localinfer.quantization.report_page` renders the report.
"""

import math
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from localinfer.gguf.source import SourceTensor
from localinfer.quantization.plan import QuantizationPlan
from localinfer.quantization.rows import Bytes, Floats, Matrix, get_decoder
from quant import ggml

BLOCK = re.compile(r"^blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class ErrorSums:
    """Sums over all weights x, their decoded values y, and the importance w of their columns; e is the error y - x.

    The name of a field lists the factors of its terms: `wxx` is the sum of w * x * x.
    """

    n: int = 0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0
    ee: float = 0.0
    wxx: float = 0.0
    wee: float = 0.0
    largest: float = 0.0  # the largest error

    def __add__(self, other: "ErrorSums") -> "ErrorSums":
        added = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return replace(ErrorSums(**added), largest=max(self.largest, other.largest))

    @classmethod
    def of(cls, x: Floats, y: Floats, w: Floats | None) -> "ErrorSums":
        """Return the sums for some rows; w is (n,), or None if all columns count the same."""
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
    """The metrics of one tensor. A field is None if it does not apply, such as the error of a copied tensor."""

    name: str
    layer: int | None
    kind: str  # the name within a layer: attn_q
    shape: tuple[int, ...]
    old_type: str
    new_type: str
    bits: float  # per weight, in the new file
    nbytes: int
    rmse: float | None = None
    largest_error: float | None = None
    relative_error: float | None = None  # root of the sum of squared errors over the sum of squared weights
    weighted_error: float | None = None  # the same, weighted by the importance of each column, if it is known
    cosine: float | None = None
    sqnr: float | None = None  # dB; None if there is no error


class Report:
    """A row observer for `quantize` that collects errors. Thread-safe."""

    def __init__(self, plan: QuantizationPlan) -> None:
        self._plan = plan
        self._sums: dict[str, ErrorSums] = {}
        self._lock = threading.Lock()

    def __call__(self, matrix: Matrix, _: int, x: Floats, out: Bytes) -> None:
        """Record rows x of a matrix and their encoded blocks `out`."""
        name, y = matrix.tensor.name, np.empty_like(x)
        get_decoder(matrix.type).rows(out.reshape(-1), y)
        importance = self._plan.importance.get(name)
        sums = ErrorSums.of(x, y, None if importance is None else importance[matrix.number])
        with self._lock:
            self._sums[name] = self._sums.get(name, ErrorSums()) + sums

    def tensors(self) -> Iterator[TensorReport]:
        """Return the reports of all tensors, in the order of the file."""
        return map(self._tensor, self._plan.source.tensors.values())

    def _tensor(self, tensor: SourceTensor) -> TensorReport:
        number, block = self._plan.types[tensor.name], BLOCK.match(tensor.name)
        nbytes = ggml.nbytes(number, tensor.shape)
        weighted = tensor.name in self._plan.importance
        return TensorReport(
            name=tensor.name,
            layer=int(block[1]) if block else None,
            kind=BLOCK.sub("", tensor.name).removesuffix(".weight"),
            shape=tensor.shape,
            old_type=tensor.type_name,
            new_type=ggml.TYPES[number].name,
            bits=8 * nbytes / max(1, tensor.n_elements),
            nbytes=nbytes,
            **error_metrics(self._sums.get(tensor.name), weighted),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report, ready for JSON."""
        tensors = list(self.tensors())
        old = sum(tensor.nbytes for tensor in self._plan.source.tensors.values())
        new, weights = sum(each.nbytes for each in tensors), sum(math.prod(each.shape) for each in tensors)
        whole = sum(self._sums.values(), ErrorSums())
        return {
            "source": str(self._plan.source.path),
            "old_nbytes": old,
            "nbytes": new,
            "weights": weights,
            "old_bits": 8 * old / max(1, weights),
            "bits": 8 * new / max(1, weights),
            **error_metrics(whole, bool(self._plan.importance)),
            "tensors": [*map(asdict, tensors)],
        }


def error_metrics(sums: ErrorSums | None, weighted: bool) -> dict[str, float | None]:
    """Return the fields of `TensorReport` that follow from the sums; empty for tensors that were copied."""
    if sums is None or not sums.n:
        return {}
    return {
        "rmse": math.sqrt(sums.ee / sums.n),
        "largest_error": sums.largest,
        "relative_error": math.sqrt(sums.ee / sums.xx) if sums.xx else None,
        "weighted_error": math.sqrt(sums.wee / sums.wxx) if weighted and sums.wxx else None,
        "cosine": sums.xy / math.sqrt(sums.xx * sums.yy) if sums.xx and sums.yy else None,
        "sqnr": 10 * math.log10(sums.xx / sums.ee) if sums.xx and sums.ee else None,
    }
