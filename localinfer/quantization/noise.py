"""Measurement of the quantization noise of tensor types, on a sample of the rows of a model's matrices.

    noise = measure_noise(source, {"output.weight": [Q4_K, Q6_K]}, encoder_factory=..., importance={}, threads=2)
    noise["output.weight"][Q6_K]        # 0.0001: one ten-thousandth

The noise of a type is sum(w * (y - x)**2) / sum(w * x**2) over the weights x of the sample, their decoded values y, and
the importance w of their columns. It is the relative power of the noise in the matrix's output for uncorrelated inputs.
`localinfer.quantization.budget` chooses types by it.

The importance of a column counts at most ten times the median. Some models have massive activations (Sun et al., 2024):
one column has nearly all of the mean square, from a few tokens such as the first one, and the noise in the outputs of
all other tokens depends on the other columns.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from localinfer.gguf.source import Source, SourceTensor
from localinfer.quantization.quantize import EncoderFactory
from localinfer.quantization.rows import Bytes, Floats, Matrix, get_decoder, load_bytes, matrices, read_selected_rows
from localinfer.quantization.worker_pool import WorkerPool
from quant import ggml

MAX_ROWS = 64  # of a matrix in the sample, at most
MAX_EXPERTS = 4  # of a tensor in the sample, at most
MAX_IMPORTANCE = 10.0  # of a column, relative to the median; 2 and 4 choose types as well

Noise = dict[str, dict[int, float]]  # by tensor name and ggml type number
Progress = Callable[[int, int], None]  # measured samples, all samples


def measure_noise(
    source: Source,
    types: Mapping[str, Iterable[int]],
    *,
    encoder_factory: EncoderFactory,
    importance: Mapping[str, Floats],
    threads: int,
    progress: Progress | None = None,
) -> Noise:
    """Return the noise of types in tensors; for tensors with several experts, their mean.

    `importance`, (matrices, n), is given for tensors whose columns differ. The sample does not depend on the call or on
    the number of threads. Raises LocalInferError for a value that is not finite.
    """
    noise: Noise = {name: {} for name in types}
    wanted = [(source.tensors[name], number) for name, numbers in types.items() for number in numbers]
    with threadpool_limits(1, "blas"), WorkerPool(threads) as pool:
        for done, (tensor, number) in enumerate(wanted, 1):
            weights = importance.get(tensor.name)
            task = partial(_measure_one, source, tensor, number, encoder_factory, weights, noise[tensor.name])
            pool.submit(task, partial(progress, done, len(wanted)) if progress else None)
    return noise


def _measure_one(
    source: Source,
    tensor: SourceTensor,
    type_number: int,
    encoder_factory: EncoderFactory,
    importance: Floats | None,
    noise_by_type: dict[int, float],
) -> None:
    data = load_bytes(source, tensor)
    sampled = list(matrices(tensor, type_number))
    ratios = []
    for matrix in (sampled[number] for number in evenly_spaced(len(sampled), MAX_EXPERTS)):
        x = sample_rows(source, matrix, data)
        y = quantized_rows(x, matrix, encoder_factory)
        ratios.append(relative_noise(x, y, None if importance is None else limited(importance[matrix.number])))
    noise_by_type[type_number] = float(np.mean(ratios))


def limited(importance: Floats) -> Floats:
    """Return importance values, (n,): none is larger than MAX_IMPORTANCE times the median of the positive ones."""
    positive = importance[importance > 0]
    return np.minimum(importance, MAX_IMPORTANCE * np.median(positive)) if len(positive) else importance


def sample_rows(source: Source, matrix: Matrix, data: Bytes, most: int = MAX_ROWS) -> Floats:
    """Return some rows of a matrix, float32 (rows, n); `data` are the bytes of its tensor."""
    return read_selected_rows(source, matrix, data, evenly_spaced(matrix.rows, most))


def quantized_rows(x: Floats, matrix: Matrix, encoder_factory: EncoderFactory) -> Floats:
    """Return rows of a matrix as they are after quantization to its target type, float32 (rows, n)."""
    out = np.empty((len(x), ggml.nbytes(matrix.type, [matrix.n])), np.uint8)
    encoder_factory(matrix)(x, out)
    y = np.empty_like(x)
    get_decoder(matrix.type).rows(out.reshape(-1), y)
    return y


def evenly_spaced(n: int, most: int) -> list[int]:
    """Return at most `most` of the numbers below n, evenly spaced."""
    count = min(n, most)
    return [i * n // count for i in range(count)]


def relative_noise(x: Floats, y: Floats, w: Floats | None) -> float:
    """Return the noise of y relative to x, (rows, n), with column weights w, (n,); 0 if x is all zeros."""
    weights = np.ones(x.shape[1]) if w is None else w.astype(np.float64)
    power = np.square(x, dtype=np.float64).sum(axis=0) @ weights
    error = np.square(y.astype(np.float64) - x).sum(axis=0) @ weights
    return float(error / power) if power else 0.0
