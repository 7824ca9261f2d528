"""Writing to the KV cache: keys are normalized and rotated, then keys and values are encoded and stored."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import int32, int64

from localinfer.kernels.attention.cache_types import (
    CACHE_TYPES,
    CacheType,
    make_page_bytes,
    make_store_key,
    make_store_value,
)
from localinfer.kernels.attention.hadamard import make_hadamard
from localinfer.kernels.layout import PAGE_SIZE
from localinfer.kernels.rope import ROTATE, make_rotate_head, widen
from quant.jit.vectors import convert, f16x16, f32x16, inline, load, store

Body = Callable[..., None]


class KeyBias(NamedTuple):
    """The key bias of a head, and what its product with the mean rotation of a page is computed from."""

    bias: int  # address of the bias, float32 [key_size]
    key_size: int
    n_rot: int
    table: int  # address of the mean rotation of the page


@inline
def pad_head(head: int, size: int, dim: int, buffer: int) -> int:
    """Return the address of a head padded with zeros from `size` to `dim` values: its own, or the buffer's."""
    if size == dim:
        return head
    widen(head, size, buffer, dim)
    return buffer


def make_subtract_anchor(pairs: str, kind: CacheType) -> Any:
    """Make subtract_anchor(key, key_dim, page, bias, buffer): subtract the page's anchor from a transformed key, and
    store the anchor. `bias` is a `KeyBias`.

    The anchor is the head's key bias, with the page's mean rotation, transformed like the key. All keys of a page store
    the same anchor, so their order does not matter.
    """
    rotate, transform = ROTATE[pairs], make_hadamard(kind)

    @inline
    def subtract_anchor(key: int, key_dim: int, page: int, bias: KeyBias, buffer: int) -> None:
        widen(bias.bias, bias.key_size, buffer, key_dim)
        rotate(buffer, bias.n_rot, bias.table)
        transform(buffer, key_dim, key_dim)
        for i in range(0, key_dim, 16):
            halves = convert(f16x16, load(f32x16, buffer + 4 * i))
            store(page + 2 * i, halves)
            store(key + 4 * i, load(f32x16, key + 4 * i) - convert(f32x16, halves))

    @inline
    def no_anchor(key: int, key_dim: int, page: int, bias: KeyBias, buffer: int) -> None:
        pass

    return subtract_anchor if kind.anchored else no_anchor


def append(pairs: str, norm: str, k_type: str, v_type: str) -> Body:
    """Make the kernel that stores the keys and values of a batch. It overwrites its inputs.

    `entries` is the cache entry of each token, int32; nothing is stored for those below 0. The caches are laid out as
    in `localinfer.kernels.attention.cache_types`, head after head. Heads of key_size and value_size values are padded
    to key_dim and value_dim values. If values are dimensions of the keys, value_dim is 0. For pages with anchors,
    `bias` is the key bias, float32 [head][key_size], and `block_table` the mean rotation of each token's page, laid out
    like `table`.
    """
    keys, values = CACHE_TYPES[k_type], CACHE_TYPES[v_type]
    rotate_head, subtract_anchor = make_rotate_head(pairs, norm), make_subtract_anchor(pairs, keys)
    transform_key, transform_value = make_hadamard(keys), make_hadamard(values)
    store_key, store_value = make_store_key(keys), make_store_value(values)
    k_page_bytes, v_page_bytes = make_page_bytes(keys), make_page_bytes(values)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n_rot, key_size, key_dim = args.n_rot, args.key_size, args.key_dim
        value_size, value_dim = args.value_size, args.value_dim
        items, pages, padded = load(int64, args.tokens) * args.heads, args.capacity // PAGE_SIZE, scratch + 128
        anchor_scratch = padded + 4 * max(key_dim, value_dim)
        for item in range(items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks):
            token, head = item // args.heads, item % args.heads
            entry = int64(load(int32, args.entries + 4 * token))
            if entry < 0:
                continue
            page = pages * head + entry // PAGE_SIZE
            key, k_page = args.k + 4 * key_size * item, args.k_cache + k_page_bytes(key_dim) * page
            rotate_head(key, key_size, n_rot, args.table + 4 * n_rot * token, args.weight, args.eps)
            key = pad_head(key, key_size, key_dim, padded)
            transform_key(key, key_dim, key_dim)
            bias = KeyBias(args.bias + 4 * key_size * head, key_size, n_rot, args.block_table + 4 * n_rot * token)
            subtract_anchor(key, key_dim, k_page, bias, anchor_scratch)
            store_key(key, key_dim, k_page, entry, scratch)
            if value_dim:
                value = pad_head(args.v + 4 * value_size * item, value_size, value_dim, padded)
                transform_value(value, value_dim, value_dim)
                store_value(value, value_dim, args.v_cache + v_page_bytes(value_dim) * page, entry, scratch)

    return body
