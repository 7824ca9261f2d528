"""Rows of a batch that come from an image or a sound instead of the token embedding."""

from collections.abc import Callable
from typing import Any

from numba import int32, int64

from localinfer.kernels.residual import add_row
from quant.jit.vectors import f32x16, inline, load, store

Body = Callable[..., None]


@inline
def row_address(args: Any, token: int) -> int:
    """Return the address of the slice of x that belongs to a token, or 0 if none does."""
    number = int64(load(int32, args.numbers + 4 * token))
    return args.x + 4 * (args.x_n * number + args.x_first) if number >= 0 else 0


def replace_rows() -> Body:
    """Make the kernel y[token] = x[numbers[token], x_first : x_first + n] for the tokens whose number is not negative;
    rows of x have x_n values."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count = load(int64, args.tokens)
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            source = row_address(args, token)
            if source:
                for i in range(0, args.n, 16):
                    store(args.y + 4 * (args.n * token + i), load(f32x16, source + 4 * i))

    return body


def add_rows() -> Body:
    """Make the kernel that adds what `replace_rows` copies."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        count = load(int64, args.tokens)
        for token in range(count * chunk_index // n_chunks, count * (chunk_index + 1) // n_chunks):
            source = row_address(args, token)
            if source:
                add_row(args.y + 4 * args.n * token, source, 1.0, args.n)

    return body
