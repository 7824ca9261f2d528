"""The way into the KV cache: keys are normalised and rotated, and with the values become cells."""

from collections.abc import Callable
from typing import Any

from numba import int32, int64

from localinfer.ops.attention import hadamard_of
from localinfer.ops.cells import CELL_TYPES, put_key_word, put_value_word
from localinfer.ops.rope import rotate_head_word, widen
from quant.jit.vectors import inline, load

Body = Callable[..., None]


def room_word(size: int, dim: int) -> Any:
    """The word room(head, place): where `dim` values are, of which the first `size` are the head and the others 0."""

    @inline
    def as_it_is(head: int, place: int) -> Any:
        return head

    @inline
    def widened(head: int, place: int) -> Any:
        widen(head, size, place, dim)
        return place

    return as_it_is if size == dim else widened


def append(
    pairs: str, norm: str, key_size: int, key_dim: int, value_size: int, value_dim: int, k_type: str, v_type: str
) -> Body:
    """The kernel that writes the keys and values of a batch, which it spoils; `cells` is the cell of each token, int32.
    Values that are dimensions of keys are written with these: value_dim is 0.

    The caches are laid out as in `localinfer.ops.cells`, a head after the other, for heads of key_dim and value_dim.
    """
    rotate_head = rotate_head_word(pairs, norm)
    transform_key, transform_value = hadamard_of(k_type, key_dim, key_dim), hadamard_of(v_type, value_dim, value_dim)
    put_key, put_value = put_key_word(CELL_TYPES[k_type], key_dim), put_value_word(CELL_TYPES[v_type], value_dim)
    k_bytes, v_bytes = CELL_TYPES[k_type].head_bytes(key_dim), CELL_TYPES[v_type].head_bytes(value_dim)
    key_room, value_room = room_word(key_size, key_dim), room_word(value_size, value_dim)

    def body(
        tokens, k, v, heads, n_rot, table, weight, eps, cells, k_cache, v_cache, capacity, part, parts, scratch
    ):  # fmt: skip
        items, wide = load(int64, tokens) * heads, scratch + 128
        for item in range(items * part // parts, items * (part + 1) // parts):
            token, head = item // heads, item % heads
            cell = int64(load(int32, cells + 4 * token))
            key, value = k + 4 * key_size * item, v + 4 * value_size * item
            rotate_head(key, key_size, n_rot, table + 4 * n_rot * token, weight, eps)
            key = key_room(key, wide)
            transform_key(key)
            put_key(key, k_cache + k_bytes * capacity * head, cell, scratch)
            if value_dim:
                value = value_room(value, wide)
                transform_value(value)
                put_value(value, v_cache + v_bytes * capacity * head, cell, scratch)

    return body
