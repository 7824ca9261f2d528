"""The differences of two models: metadata, tensors, and how far the weights of one are from those of the other."""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from localinfer.gguf.dequantize import Decoder
from localinfer.gguf.source import Field, Source, SourceTensor
from quant import FORMATS, ggml

BLOCK_ELEMENTS = 1 << 22  # weights that a thread decodes at once
Progress = Callable[[int, int], None]  # weights that are compared, weights in all


@dataclass(frozen=True)
class FieldDifference:
    """A key of the metadata whose values differ; None where a model does not have it."""

    key: str
    first: Field | None
    second: Field | None


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that differs; None where a model does not have it.

    `error` is the root mean square of the differences of the weights, divided by that of the first model's weights; NaN
    if shapes differ or a type cannot be decoded. `largest` is the largest difference of a weight.
    """

    name: str
    first: SourceTensor | None
    second: SourceTensor | None
    error: float = math.nan
    largest: float = math.nan


def compare_metadata(first: Source, second: Source) -> list[FieldDifference]:
    """Return the keys whose values are not the same bytes, in the order of the first model."""
    a, b = first.fields, second.fields
    return [FieldDifference(key, a.get(key), b.get(key)) for key in merged(a, b) if a.get(key) != b.get(key)]


def compare_tensors(
    first: Source, second: Source, threads: int, progress: Progress | None = None
) -> list[TensorDifference]:
    """Return the tensors that differ, in the order of the first model: in type, shape or values."""
    found, done = [], 0
    names = merged(first.tensors, second.tensors)
    total = sum(each.n_elements for each in first.tensors.values() if each.name in second.tensors)
    with ThreadPoolExecutor(threads) as pool:
        for name in names:
            a, b = first.tensors.get(name), second.tensors.get(name)
            if a is None or b is None or a.shape != b.shape:
                found.append(TensorDifference(name, a, b))
            elif a.type != b.type or not np.array_equal(a.load(), b.load()):
                found.append(TensorDifference(name, a, b, *weight_error(a, b, pool)))
            done += a.n_elements if a and b else 0
            if progress:
                progress(done, total)
    return found


def weight_error(a: SourceTensor, b: SourceTensor, pool: ThreadPoolExecutor) -> tuple[float, float]:
    """Return the relative root mean square error of the second tensor, and the largest difference. NaN if a type cannot
    be decoded."""
    if not {a.type, b.type} <= FORMATS.keys():
        return math.nan, math.nan
    n, n_rows = a.shape[-1], a.n_elements // a.shape[-1]
    data = a.load(), b.load()
    decoders = Decoder(a.type), Decoder(b.type)
    step = max(1, BLOCK_ELEMENTS // n)

    def compare(first: int) -> tuple[float, float, float]:
        rows = min(step, n_rows - first)
        values = np.empty((2, rows, n), np.float32)
        for out, decoder, raw, each in zip(values, decoders, data, (a, b), strict=True):
            row_bytes = ggml.nbytes(each.type, [n])
            decoder.rows(raw[first * row_bytes : (first + rows) * row_bytes], out)
        difference = values[1] - values[0]
        squared, reference = (float(np.square(x, dtype=np.float64).sum()) for x in (difference, values[0]))
        return squared, reference, float(np.abs(difference).max(initial=0.0))

    parts = list(pool.map(compare, range(0, n_rows, step)))
    squared, reference = (math.fsum(part[i] for part in parts) for i in (0, 1))
    largest = float(np.max([part[2] for part in parts]))  # NaN if one is
    return (math.sqrt(squared / reference) if reference else math.inf if squared else 0.0), largest


def merged(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """Return the names of both, those of the first one first."""
    return list(dict.fromkeys([*a, *b]))
