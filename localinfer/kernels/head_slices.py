"""Operations on heads, x[token][head][size]: slices of them, and sorting for products with one matrix per head.

For such a product, the rows of a head form a run (`quant.matmul.experts`): rows are ordered by head, then by token. In
large batches, each run starts at a tile boundary, and padding rows are empty.
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int64

from localinfer.kernels.experts import write_run
from quant.jit.threads import chunk_range
from quant.jit.vectors import f32x16, fma, inline, load, reduce_sum, splat, store
from quant.matmul.activations import make_quantize_groups

Body = Callable[..., None]


@inline
def copy(source: int, size: int, out: int) -> Any:
    """Copy `size` floats."""
    whole = size // 16 * 16
    for i in range(0, 4 * whole, 64):
        store(out + i, load(f32x16, source + i))
    for i in range(4 * whole, 4 * size, 4):
        store(out + i, load(float32, source + i))


def copy_slices() -> Body:
    """Make the kernel that copies `size` values of each head of each token, from offset x_first in x to y_first in y.
    Heads have x_step values in x and y_step in y."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        items = load(int64, args.tokens) * args.heads
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            copy(
                args.x + 4 * (args.x_step * item + args.x_first),
                args.size,
                args.y + 4 * (args.y_step * item + args.y_first),
            )

    return body


def repeat() -> Body:
    """Make the kernel that copies the `size` values of each token to each of its heads."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        items = load(int64, args.tokens) * args.heads
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            copy(args.x + 4 * args.size * (item // args.heads), args.size, args.y + 4 * args.size * item)

    return body


def dot_heads() -> Body:
    """Make the kernel y[token][head] = x[token][head] . other[token][head], where heads have a multiple of 16
    values."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        items, size = load(int64, args.tokens) * args.heads, 4 * args.size
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            total = splat(f32x16, float32(0.0))
            for i in range(size * item, size * (item + 1), 64):
                total = fma(load(f32x16, args.x + i), load(f32x16, args.other + i), total)
            store(args.y + 4 * item, reduce_sum(total))

    return body


def gather_heads(tile: int, passes: int) -> Body:
    """Make the kernel y[row] = x[token][head] of the row, 0 in empty rows, and q = y quantized unless q is 0.
    `row_count` receives the number of rows."""
    quantize_groups, together = make_quantize_groups(tile, passes), max(tile, 1)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        heads, size = args.heads, args.size
        count = load(int64, args.tokens)
        padded_tokens = (count + together - 1) // together * together
        first, end = chunk_range(heads * padded_tokens, together, chunk_index, n_chunks)
        for row in range(first, end):
            head, token, out = row // padded_tokens, row % padded_tokens, args.y + 4 * size * row
            if token < count:
                copy(args.x + 4 * size * (heads * token + head), size, out)
            else:
                for i in range(0, 4 * size, 64):
                    store(out + i, splat(f32x16, float32(0.0)))
            if args.q:
                quantize_groups(out, args.q, row, 0, size // 32, size)
        if chunk_index == 0:
            store(args.row_count, heads * padded_tokens)
            store(args.runs, heads)
            for head in range(heads):
                write_run(args.runs, head, head, head * padded_tokens, count)

    return body
