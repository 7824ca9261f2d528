"""The way into the KV cache: keys are normalised and rotated, and with the values become cells."""

from collections.abc import Callable

from numba import int32, int64

from localinfer.ops.attention import turning
from localinfer.ops.cells import CELL_TYPES, put_key_word, put_value_word
from localinfer.ops.norm import normalize
from localinfer.ops.rope import ROTATE
from quant.jit.vectors import load

Body = Callable[..., None]


def append(pairs: str, norm: int, head_dim: int, k_type: str, v_type: str) -> Body:
    """The kernel that writes the keys and values of a batch, which it spoils; `cells` is the cell of each token, int32.

    The caches are laid out as in `localinfer.ops.cells`, a head after the other.
    """
    rotate, turn_key, turn_value = ROTATE[pairs], turning(k_type, head_dim), turning(v_type, head_dim)
    put_key, put_value = put_key_word(CELL_TYPES[k_type], head_dim), put_value_word(CELL_TYPES[v_type], head_dim)
    k_bytes, v_bytes = (CELL_TYPES[kind].head_bytes(head_dim) for kind in (k_type, v_type))

    def body(
        tokens, k, v, heads, n_rot, table, weight, eps, cells, k_cache, v_cache, capacity, part, parts, scratch
    ):  # fmt: skip
        items = load(int64, tokens) * heads
        for item in range(items * part // parts, items * (part + 1) // parts):
            token, head = item // heads, item % heads
            cell = int64(load(int32, cells + 4 * token))
            key, value = k + 4 * head_dim * item, v + 4 * head_dim * item
            if norm:
                normalize(key, weight, head_dim, eps, key)
            rotate(key, n_rot, table + 4 * n_rot * token)
            turn_key(key)
            put_key(key, k_cache + k_bytes * capacity * head, cell, scratch)
            turn_value(value)
            put_value(value, v_cache + v_bytes * capacity * head, cell, scratch)

    return body
