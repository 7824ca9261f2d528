"""The check of a model's weights for values that are not finite, which would make every result NaN."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from localinfer.gguf.dequantize import Decoder
from localinfer.gguf.reader import GGUF, Tensor
from quant import FORMATS, ggml

STAGE = "check"
VALUES = 1 << 20  # that a thread decodes at once
Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in total


class Piece(NamedTuple):
    """Some rows of a tensor."""

    tensor: Tensor
    first: int
    n_rows: int

    @property
    def nbytes(self) -> int:
        return self.n_rows * ggml.nbytes(self.tensor.type, self.tensor.shape[-1:])


def check_tensors(f: GGUF, threads: int, progress: Progress | None = None) -> None:
    """Decode all weights of a model. Raises LocalInferError for a value that is not finite.

    Tensors of types that are not decoded, such as integers, have no such values.
    """
    pieces = [piece for tensor in f.tensors.values() if tensor.type in FORMATS for piece in split(tensor)]
    decoders = {number: Decoder(number) for number in {piece.tensor.type for piece in pieces}}
    done, total = 0, sum(piece.nbytes for piece in pieces)

    def check(piece: Piece) -> int:
        tensor, first, n_rows = piece
        x, begin = np.empty((n_rows, tensor.shape[-1]), np.float32), first * (piece.nbytes // n_rows)
        decoders[tensor.type].rows(tensor.data[begin : begin + piece.nbytes], x)
        good = np.isfinite(x)
        if not good.all():
            row, column = divmod(int(good.argmin()), x.shape[1])
            raise f.error(f"tensor {tensor.name}", f"value {x[row, column]} at row {first + row}, column {column}")
        return piece.nbytes

    with ThreadPoolExecutor(threads, "check-tensors") as pool:
        try:
            for nbytes in pool.map(check, pieces):
                done += nbytes
                if progress:
                    progress(STAGE, done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def split(tensor: Tensor) -> Iterator[Piece]:
    """Divide a tensor into pieces of about `VALUES` values."""
    total, step = tensor.n_elements // tensor.shape[-1], max(1, VALUES // tensor.shape[-1])
    for first in range(0, total, step):
        yield Piece(tensor, first, min(step, total - first))
