"""The scales of LoRA adapters: see `localinfer.graph.properties.adapters`."""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from quant.jit.threads import chunk_range
from quant.jit.vectors import f32x16, load, splat, store

Body = Callable[..., None]


def scale_low_rank() -> Body:
    """Make the kernel x[row] *= factor * scale, for each 16 columns with the factor of these columns and the scale that
    the row's token has for their adapter.

    `scales` are float32 [token][count], `owners` the adapters, int32 [n / 16], `factors` float32 [n / 16]. Without
    `order`, rows are tokens; with it, the token of a row is order[row] // used, and rows with a negative one are empty.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for row in range(first, end):
            entry = int64(load(int32, args.order + 4 * row)) if args.order else int64(row)
            if entry >= 0:
                scales = args.scales + 4 * args.count * (entry // args.used)
                for i in range(n // 16):
                    scale = load(float32, scales + 4 * int64(load(int32, args.owners + 4 * i)))
                    factor = splat(f32x16, scale * load(float32, args.factors + 4 * i))
                    at = args.x + 4 * (n * row + 16 * i)
                    store(at, factor * load(f32x16, at))

    return body
