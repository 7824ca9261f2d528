"""The output of attention: sums of values divided by their denominators, and quantized."""

from typing import Any, NamedTuple

from numba import float32

from localinfer.kernels.attention.cache_types import CacheType
from localinfer.kernels.attention.hadamard import make_hadamard
from localinfer.kernels.attention.online_softmax import DENOMINATOR, SUMS, add_sink
from quant.jit.vectors import f32x16, inline, load, reduce_sum, splat, store
from quant.matmul.activations import make_quantize_groups


class OutputHeads(NamedTuple):
    """The heads of the output: `n_heads` query heads of `value_size` values, the first of value_dim values in a
    state. The cache has `entry_dim` values for each head and entry: more if values are dimensions of the keys.
    """

    n_heads: int
    value_dim: int
    value_size: int
    entry_dim: int


def make_store_output(values: CacheType, tile: int, passes: int) -> Any:
    """Make store_output(args, heads, state, token, head, end): store the output of the query heads head .. end - 1 of a
    token in y, and quantize it unless q_out is 0. The heads are some of `OutputHeads`; `state` is the address of the
    first one's state.

    `values` is the cache type of the values: what was transformed is transformed back. The output is quantized for
    tiles of `tile` tokens in `passes` passes.
    """
    transform, quantize_groups = make_hadamard(values), make_quantize_groups(tile, passes)

    @inline
    def store_head(heads: OutputHeads, state: int, y: int) -> None:
        size = heads.value_size
        transform(state + SUMS, heads.value_dim, heads.entry_dim)
        inverse, whole = float32(1.0) / reduce_sum(load(f32x16, state + DENOMINATOR)), size // 16 * 16
        factor = splat(f32x16, inverse)
        for i in range(0, 4 * whole, 64):
            store(y + i, load(f32x16, state + SUMS + i) * factor)
        for i in range(4 * whole, 4 * size, 4):
            store(y + i, load(float32, state + SUMS + i) * inverse)

    @inline
    def store_output(args: Any, heads: OutputHeads, state: int, token: int, head: int, end: int) -> None:
        size, stride = heads.value_size, SUMS + 4 * heads.value_dim
        n = heads.n_heads * size
        for number in range(head, end):
            row = state + stride * (number - head)
            if args.attn_sinks:
                add_sink(row, heads.value_dim, load(float32, args.attn_sinks + 4 * number))
            store_head(heads, row, args.y + 4 * (n * token + size * number))
        if args.q_out:
            groups = size // 32
            quantize_groups(args.y + 4 * n * token, args.q_out, token, groups * head, groups * end, n)

    return store_output
