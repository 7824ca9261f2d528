"""Writing to the KV cache: keys are normalised and rotated, then keys and values are encoded and stored."""

from collections.abc import Callable
from typing import Any

from numba import int32, int64

from localinfer.kernels.attention.cache_types import CACHE_TYPES, make_key_block, make_store_key, make_store_value
from localinfer.kernels.attention.hadamard import make_hadamard
from localinfer.kernels.layout import PAGE_SIZE, hadamard_block
from localinfer.kernels.rope import ROTATE, make_rotate_head, widen
from quant.jit.vectors import convert, f16x16, f32x16, inline, load, store

Body = Callable[..., None]


def make_widen(size: int, dim: int) -> Any:
    """Make widen_head(head, buffer): return the address of the head padded with zeros from `size` to `dim` values."""

    @inline
    def unchanged(head: int, buffer: int) -> Any:
        return head

    @inline
    def widened(head: int, buffer: int) -> Any:
        widen(head, size, buffer, dim)
        return buffer

    return unchanged if size == dim else widened


def make_store_anchor(pairs: str, k_type: str, size: int, dim: int) -> Any:
    """Make subtract_anchor(key, keys, entry, bias, n_rot, table, buffer): subtract the page's anchor from a transformed
    key, and store the anchor.

    The anchor is the head's key bias, with the page's mean rotation, transformed like the key. All keys of a page store
    the same anchor, so their order does not matter.
    """
    rotate, transform, kind = ROTATE[pairs], make_hadamard(hadamard_block(k_type, dim)), CACHE_TYPES[k_type]
    key_block = make_key_block(kind, dim)

    @inline
    def subtract_anchor(key: int, keys: int, entry: int, bias: int, n_rot: int, table: int, buffer: int) -> None:
        widen(bias, size, buffer, dim)
        rotate(buffer, n_rot, table)
        transform(buffer, dim)
        block = key_block(keys, entry)
        for i in range(0, dim, 16):
            halves = convert(f16x16, load(f32x16, buffer + 4 * i))
            store(block + 2 * i, halves)
            store(key + 4 * i, load(f32x16, key + 4 * i) - convert(f32x16, halves))

    @inline
    def no_anchor(key: int, keys: int, entry: int, bias: int, n_rot: int, table: int, buffer: int) -> None:
        pass

    return subtract_anchor if kind.anchored else no_anchor


def append(
    pairs: str, norm: str, key_size: int, key_dim: int, value_size: int, value_dim: int, k_type: str, v_type: str
) -> Body:
    """Make the kernel that stores the keys and values of a batch. It overwrites its inputs.

    `entries` is the cache entry of each token, int32. The caches are laid out as in
    `localinfer.kernels.attention.cache_types`, head after head, for heads of key_dim and value_dim values. If values
    are dimensions of the keys, value_dim is 0. For pages with anchors, `bias` is the key bias, float32
    [head][key_size], and `block_table` the mean rotation of each token's page, laid out like `table`.
    """
    rotate_head = make_rotate_head(pairs, norm)
    transform_key = make_hadamard(hadamard_block(k_type, key_dim))
    transform_value = make_hadamard(hadamard_block(v_type, value_dim))
    store_key, store_value = (
        make_store_key(CACHE_TYPES[k_type], key_dim),
        make_store_value(CACHE_TYPES[v_type], value_dim),
    )
    k_block, v_block = CACHE_TYPES[k_type].block_bytes(key_dim), CACHE_TYPES[v_type].block_bytes(value_dim)
    subtract_anchor = make_store_anchor(pairs, k_type, key_size, key_dim)
    widen_key, widen_value = make_widen(key_size, key_dim), make_widen(value_size, value_dim)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n_rot = args.n_rot
        items, blocks, wide = load(int64, args.tokens) * args.heads, args.capacity // PAGE_SIZE, scratch + 128
        anchor_scratch = wide + 4 * max(key_dim, value_dim)
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            token, head = item // args.heads, item % args.heads
            entry = int64(load(int32, args.entries + 4 * token))
            key, value = args.k + 4 * key_size * item, args.v + 4 * value_size * item
            rotate_head(key, key_size, n_rot, args.table + 4 * n_rot * token, args.weight, args.eps)
            key = widen_key(key, wide)
            transform_key(key, key_dim)
            keys = args.k_cache + k_block * blocks * head
            subtract_anchor(
                key,
                keys,
                entry,
                args.bias + 4 * key_size * head,
                n_rot,
                args.block_table + 4 * n_rot * token,
                anchor_scratch,
            )
            store_key(key, keys, entry, scratch)
            if value_dim:
                value = widen_value(value, wide)
                transform_value(value, value_dim)
                store_value(value, args.v_cache + v_block * blocks * head, entry, scratch)

    return body
