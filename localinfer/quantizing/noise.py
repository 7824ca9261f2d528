"""How much noise types would bring into what a model's matrices put out, measured with a sample of their rows.

    noise = measure(source, {"output.weight": [Q4_K, Q6_K]}, encoder_of=encoders(...), importance={}, threads=2)
    noise["output.weight"][Q6_K]        # 0.0001: one part in ten thousand

The noise of a type is sum(w * (y - x)**2) / sum(w * x**2) over the weights x of the sample, y being what becomes of
them and w how much their columns matter: the share of the noise in the power of what the matrix puts out, when inputs
do not go together. Which types are worth their bytes is decided in `localinfer.quantizing.budget`.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from localinfer.files.source import Source, SourceTensor
from localinfer.quantizing.crew import Crew
from localinfer.quantizing.quantize import EncoderOf
from localinfer.quantizing.rows import Bytes, Floats, Matrix, decoder_of, load, matrices, read_some
from quant import ggml

ROWS = 64  # of a matrix that are looked at, at most
EXPERTS = 4  # of a tensor

Noise = dict[str, dict[int, float]]  # by tensor and by ggml's number of the type
Progress = Callable[[int, int], None]  # so many of so many samples are measured


def measure(
    source: Source,
    types: Mapping[str, Iterable[int]],
    *,
    encoder_of: EncoderOf,
    importance: Mapping[str, Floats],
    threads: int,
    progress: Progress | None = None,
) -> Noise:
    """The noise of some types in some tensors; of several experts, their mean.

    `importance`, (matrices, n), is there for the tensors where columns differ. The same rows are looked at every time,
    by any number of threads. Raises LocalInferError for a value that is no finite number.
    """
    noise: Noise = {name: {} for name in types}
    wanted = [(source.tensors[name], number) for name, numbers in types.items() for number in numbers]
    with threadpool_limits(1, "blas"), Crew(threads) as crew:
        for done, (tensor, number) in enumerate(wanted, 1):
            weights = importance.get(tensor.name)
            task = partial(_measure_one, source, tensor, number, encoder_of, weights, noise[tensor.name])
            crew.give(task, partial(progress, done, len(wanted)) if progress else None)
    return noise


def _measure_one(
    source: Source,
    tensor: SourceTensor,
    type_number: int,
    encoder_of: EncoderOf,
    importance: Floats | None,
    found: dict[int, float],
) -> None:
    data = load(source, tensor)
    sampled = list(matrices(tensor, type_number))
    shares = []
    for matrix in (sampled[number] for number in spread(len(sampled), EXPERTS)):
        x = sample(source, matrix, data)
        out = np.empty((len(x), ggml.nbytes(type_number, matrix.n)), np.uint8)
        encoder_of(matrix)(x, out)
        y = np.empty_like(x)
        decoder_of(type_number).rows(out.reshape(-1), y)
        shares.append(noise_share(x, y, None if importance is None else importance[matrix.number]))
    found[type_number] = float(np.mean(shares))


def sample(source: Source, matrix: Matrix, data: Bytes, most: int = ROWS) -> Floats:
    """Some rows of a matrix, (rows, n); `data` are the bytes of its tensor."""
    return read_some(source, matrix, data, spread(matrix.rows, most))


def spread(n: int, most: int) -> list[int]:
    """Some of the numbers below n, at even distances."""
    count = min(n, most)
    return [i * n // count for i in range(count)]


def noise_share(x: Floats, y: Floats, w: Floats | None) -> float:
    """The noise of y in the place of x, (rows, n), where columns count w, (n,); of nothing but zeros none."""
    weights = np.ones(x.shape[1]) if w is None else w.astype(np.float64)
    power = np.square(x, dtype=np.float64).sum(axis=0) @ weights
    error = np.square(y.astype(np.float64) - x).sum(axis=0) @ weights
    return float(error / power) if power else 0.0
