"""The kernel that encodes rows with the encode function of a block format. See `quant.encoders.encoder`."""

from importlib import import_module
from typing import Any

from quant.jit.threads import chunk_range
from quant.packing.format_spec import KernelBody


def encode_rows(format_module: str, effort: str) -> KernelBody:
    """The kernel y[row] = blocks of x[row]: rows of n float32 into rows of row_bytes."""
    encode_row = import_module(f"quant.formats.{format_module}").make_row_encoder(effort)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(args.rows, 1, chunk_index, n_chunks)
        for row in range(first, end):
            encode_row(args.x + 4 * args.n * row, args.importance, args.n, args.y + args.row_bytes * row, scratch)

    return body
