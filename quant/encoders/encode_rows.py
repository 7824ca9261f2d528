"""The kernel that encodes rows of a block format, given the format's own word for one: see `quant.encoders.encode`."""

from importlib import import_module

from quant.codes.words import Body
from quant.jit.threads import share


def encode(room: str, effort: str) -> Body:
    """The kernel y[row] = blocks of x[row]: rows of n float32 into rows of row_bytes."""
    encode_row = import_module(f"quant.formats.{room}").encoder(effort)

    def body(x, importance, n, y, row_bytes, rows, part, parts, scratch):
        first, end = share(rows, 1, part, parts)
        for row in range(first, end):
            encode_row(x + 4 * n * row, importance, n, y + row_bytes * row, scratch)

    return body
