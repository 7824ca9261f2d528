"""The division of a product with many tokens into chunks: panels of rows, and parts of the tokens.

If a matrix has too few panels for all threads, the tokens are divided, too. The panels of all parts are counted one
after the other, and a chunk is a range of them: panels for one part of the tokens, and possibly more for the next part.
Sums are never divided.
"""

from typing import Any

from numba import int64

from quant.jit.vectors import load
from quant.packing.format_spec import KernelBody

MIN_PART_TILES = 4  # tiles of tokens in a part: unpacking a panel takes as long as multiplying it by a few tokens


def make_divided_kernel(multiply: Any, rows: int, tokens: int) -> KernelBody:
    """Return the kernel of a product for panels of `rows` rows and tiles of `tokens` tokens.

    `multiply(args, first, end, first_tile, end_tile, scratch)` is an inlined function, which multiplies the rows
    first .. end - 1 by the tokens of the tiles first_tile .. end_tile - 1. `args` are `ProductArguments`.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        panels, tiles = (args.n_out + rows - 1) // rows, (load(int64, args.tokens) + tokens - 1) // tokens
        parts = max(1, min(args.token_parts, tiles // MIN_PART_TILES))
        at, end = parts * panels * chunk_index // n_chunks, parts * panels * (chunk_index + 1) // n_chunks
        while at < end and not load(int64, args.stop):
            part, panel = at // panels, at % panels
            end_panel = min(panel + end - at, panels)
            first_tile, end_tile = tiles * part // parts, tiles * (part + 1) // parts
            multiply(args, rows * panel, min(rows * end_panel, args.n_out), first_tile, end_tile, scratch)
            at += end_panel - panel

    return body
