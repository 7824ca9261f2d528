"""Exchange of tensors of a loaded model: they are quantized in memory, and restored afterwards.

    f = open_gguf(path, PrivateFile)
    exchange = WeightExchange(f, source, encoder_factory, threads=2)
    with exchange.quantized({"blk.0.ffn_up.weight": Q4_0}):
        ...                                  # every engine of `f` computes with the quantized weights

The quantized weights are decoded into the tensor's own type, F32, F16 or BF16, so that nothing but the weights changes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from localinfer.gguf.reader import GGUF
from localinfer.gguf.source import Source
from localinfer.quantization.quantize import EncoderFactory, RowEncoder
from localinfer.quantization.rows import Bytes, RowSlice, get_decoder, load_bytes, matrices, read_rows, row_slices
from localinfer.quantization.worker_pool import WorkerPool
from quant import ggml


class WeightExchange:
    """Quantizes tensors of an open model in memory. `f` is opened as `PrivateFile`, from the file of the source."""

    def __init__(self, f: GGUF, source: Source, encoder_factory: EncoderFactory, threads: int) -> None:
        self._f, self._source, self._encoder_factory, self._threads = f, source, encoder_factory, threads

    @contextmanager
    def quantized(self, types: Mapping[str, int]) -> Iterator[None]:
        """Replace tensors by their quantizations to ggml types, by number, for the time of the with block.

        Raises LocalInferError for a weight that is not finite.
        """
        try:
            with threadpool_limits(1, "blas"), WorkerPool(self._threads) as pool:
                for name, number in types.items():
                    self._submit(pool, name, number)
            yield
        finally:
            for name in types:
                self._f.tensors[name].data[:] = load_bytes(self._source, self._source.tensors[name])

    def _submit(self, pool: WorkerPool, name: str, type_number: int) -> None:
        tensor, target = self._source.tensors[name], self._f.tensors[name].data
        original = load_bytes(self._source, tensor)
        for matrix, stored in zip(matrices(tensor, type_number), matrices(tensor, tensor.type), strict=True):
            encode, store = self._encoder_factory(matrix), self._encoder_factory(stored)
            for rows in row_slices(matrix, original, self._encoder_factory.min_rows):
                begin = rows.row * ggml.nbytes(tensor.type, [matrix.n])
                out = target[begin : begin + rows.data.size].reshape(rows.count, -1)
                pool.submit(partial(_exchange_rows, self._source, rows, encode, store, out))


def _exchange_rows(source: Source, rows: RowSlice, encode: RowEncoder, store: RowEncoder, out: Bytes) -> None:
    """Write the quantized and decoded rows of a slice to `out`, in a worker thread."""
    x = np.empty(rows.shape, np.float32)
    read_rows(source, rows, x)
    encoded = np.empty((rows.count, ggml.nbytes(rows.matrix.type, [rows.matrix.n])), np.uint8)
    encode(x, encoded)
    get_decoder(rows.matrix.type).rows(encoded.reshape(-1), x)
    store(x, out)
