"""The way into the KV cache: keys are normalised and rotated, and with the values become cells."""

from collections.abc import Callable
from typing import Any

from numba import int32, int64

from localinfer.ops.attention import hadamard_of
from localinfer.ops.cells import CELL_TYPES, key_block_word, put_key_word, put_value_word
from localinfer.ops.layout import BLOCK
from localinfer.ops.rope import ROTATE, rotate_head_word, widen
from quant.jit.vectors import convert, f16x16, f32x16, inline, load, store

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


def anchor_word(pairs: str, k_type: str, size: int, dim: int) -> Any:
    """The word anchor(key, keys, cell, bias, n_rot, table, place): a key, transformed, becomes what it is beyond its
    block's anchor, which is a head's bias, rotated as the block is on average, and transformed likewise.

    All keys of a block put the same anchor there: none has to know who came first.
    """
    rotate, transform, kind = ROTATE[pairs], hadamard_of(k_type, dim, dim), CELL_TYPES[k_type]
    key_block = key_block_word(kind, dim)

    @inline
    def anchor(key: int, keys: int, cell: int, bias: int, n_rot: int, table: int, place: int) -> None:
        widen(bias, size, place, dim)
        rotate(place, n_rot, table)
        transform(place)
        block = key_block(keys, cell)
        for i in range(0, dim, 16):
            halves = convert(f16x16, load(f32x16, place + 4 * i))
            store(block + 2 * i, halves)
            store(key + 4 * i, load(f32x16, key + 4 * i) - convert(f32x16, halves))

    @inline
    def nothing(key: int, keys: int, cell: int, bias: int, n_rot: int, table: int, place: int) -> None:
        pass

    return anchor if kind.anchored else nothing


def append(
    pairs: str, norm: str, key_size: int, key_dim: int, value_size: int, value_dim: int, k_type: str, v_type: str
) -> Body:
    """The kernel that writes the keys and values of a batch, which it spoils; `cells` is the cell of each token, int32.
    Values that are dimensions of keys are written with these: value_dim is 0.

    The caches are laid out as in `localinfer.ops.cells`, a head after the other, for heads of key_dim and value_dim.
    Keys whose blocks have anchors are told their `bias`, float32 [head][key_size], and how each token's block is turned
    on average: `block_table`, like `table`.
    """
    rotate_head = rotate_head_word(pairs, norm)
    transform_key, transform_value = hadamard_of(k_type, key_dim, key_dim), hadamard_of(v_type, value_dim, value_dim)
    put_key, put_value = put_key_word(CELL_TYPES[k_type], key_dim), put_value_word(CELL_TYPES[v_type], value_dim)
    k_block, v_block = CELL_TYPES[k_type].block_bytes(key_dim), CELL_TYPES[v_type].block_bytes(value_dim)
    anchor = anchor_word(pairs, k_type, key_size, key_dim)
    key_room, value_room = room_word(key_size, key_dim), room_word(value_size, value_dim)

    def body(
        tokens, k, v, heads, n_rot, table, block_table, bias, weight, eps, cells, k_cache, v_cache, capacity, part,
        parts, scratch
    ):  # fmt: skip
        items, blocks, wide = load(int64, tokens) * heads, capacity // BLOCK, scratch + 128
        spare = wide + 4 * max(key_dim, value_dim)
        for item in range(items * part // parts, items * (part + 1) // parts):
            token, head = item // heads, item % heads
            cell = int64(load(int32, cells + 4 * token))
            key, value = k + 4 * key_size * item, v + 4 * value_size * item
            rotate_head(key, key_size, n_rot, table + 4 * n_rot * token, weight, eps)
            key = key_room(key, wide)
            transform_key(key)
            keys = k_cache + k_block * blocks * head
            anchor(key, keys, cell, bias + 4 * key_size * head, n_rot, block_table + 4 * n_rot * token, spare)
            put_key(key, keys, cell, scratch)
            if value_dim:
                value = value_room(value, wide)
                transform_value(value)
                put_value(value, v_cache + v_block * blocks * head, cell, scratch)

    return body
