"""The keys and values that the KV cache holds, and what its rounding allows.

`localinfer.kernels.attention.cache_types` describes the layout. Quantized keys and values are stored after a
Walsh-Hadamard transform of each head, and keys with a bias relative to an anchor of their page; they are compared as
they are stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.cache.ring_buffer import LayerCache, RingBuffer
from localinfer.graph.ops.buffers import Region
from localinfer.kernels.layout import ANCHORED_TYPES, PAGE_SIZE, PANEL_KEYS

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int32]

GROUP = 32  # values with a scale of their own
FLOAT_TYPES: dict[str, type[np.floating[Any]]] = {"f32": np.float32, "f16": np.float16}
PLAIN_TYPES = {anchored: plain for plain, anchored in ANCHORED_TYPES.items()}
HALF = 2.0**-11 * 1.01, 2.0**-25  # the rounding error of half precision, relative and absolute


@dataclass(frozen=True, eq=False)
class CachedHeads:
    """Keys or values of heads as a cache of a type holds them, (heads, tokens, dim): codes times scales, or floats. The
    first `size` of `dim` dimensions are not padding. `anchors` are those of the keys, in the same shape, if any."""

    type: str
    size: int
    stored: Floats
    anchors: Floats | None = None

    @property
    def is_quantized(self) -> bool:
        """Whether heads are transformed before they are stored."""
        return self.type not in FLOAT_TYPES

    def heads(self) -> Floats:
        """Return the heads that attention reads, (heads, tokens, size), in float64."""
        stored = self.stored.astype(np.float64)
        if self.anchors is not None:
            stored = stored + self.anchors
        return (transform(stored) if self.is_quantized else stored)[..., : self.size]

    def as_stored(self, heads: Floats) -> Floats:
        """Return exact heads as they would be stored without rounding: (heads, tokens, dim)."""
        padded = np.pad(heads, ((0, 0), (0, 0), (0, self.stored.shape[2] - heads.shape[2])))
        if not self.is_quantized:
            return padded
        transformed = transform(padded)
        return transformed if self.anchors is None else transformed - self.anchors.astype(heads.dtype)

    def rounding(self, exact: Floats) -> Floats | float:
        """Return the largest error that the type makes of each of these values, which are `as_stored`."""
        if self.type == "f32":
            return 0.0
        halves: Floats = HALF[0] * np.abs(exact)
        if self.type == "f16":
            return halves + HALF[1]
        groups = np.abs(exact).reshape(*exact.shape[:-1], -1, GROUP)
        steps = groups.max(axis=-1, keepdims=True) / (127 if self.type == "q8_0" else 8)
        # Of four bits, the largest value has code -8, and one of the other sign may need +8, which is stored as 7.
        errors = 0.5 * steps if self.type == "q8_0" else np.maximum(0.5 * steps, groups - 7 * steps)
        rounded: Floats = (np.broadcast_to(errors, groups.shape).reshape(exact.shape)) * 1.001 + halves
        return rounded

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> "CachedHeads":
        """Return the heads of batches that follow each other as one."""
        first = parts[0]
        anchors = None
        if first.anchors is not None:
            anchors = np.concatenate([part.anchors for part in parts if part.anchors is not None], axis=1)
        return CachedHeads(first.type, first.size, np.concatenate([part.stored for part in parts], axis=1), anchors)


def transform(x: Floats) -> Floats:
    """Return the Walsh-Hadamard transform of the last axis, in blocks of the largest power of two that divides its
    length. It is its own inverse."""
    n = x.shape[-1]
    block = n & -n
    index = np.arange(block)
    signs = 1.0 - 2.0 * (np.bitwise_count(index[:, None] & index) % 2)
    y = x.reshape(*x.shape[:-1], n // block, block) @ (signs / np.sqrt(block)).astype(x.dtype)
    transformed: Floats = y.reshape(x.shape)
    return transformed


def read_keys(cache: LayerCache, ring: RingBuffer, entries: Indices, dim: int, size: int) -> CachedHeads:
    """Return the keys of entries, whose heads have `size` of `dim` dimensions."""
    kind, plain = cache.types["k_type"], PLAIN_TYPES.get(cache.types["k_type"], cache.types["k_type"])
    count = len(entries)
    pages, within = pages_of(cache.k, cache.heads, ring, entries)
    panel, lane = np.divmod(within, PANEL_KEYS)
    tokens, anchors = np.arange(count), None
    if kind != plain:
        anchors = pages[..., : 2 * dim].copy().view(np.float16).astype(np.float64)
        pages = pages[..., 2 * dim :]
    panels = pages.reshape(*pages.shape[:2], PAGE_SIZE // PANEL_KEYS, -1)[:, tokens, panel]
    if plain in FLOAT_TYPES:
        by_dimension = panels.copy().view(FLOAT_TYPES[plain]).reshape(cache.heads, count, dim, PANEL_KEYS)
        return CachedHeads(plain, size, by_dimension[:, tokens, :, lane].swapaxes(0, 1))
    groups = panels.reshape(cache.heads, count, dim // GROUP, -1)
    scales = groups[..., : 2 * PANEL_KEYS].copy().view(np.float16)[:, tokens, :, lane].swapaxes(0, 1)
    lines = groups[..., 2 * PANEL_KEYS :].reshape(cache.heads, count, dim // GROUP, -1, PANEL_KEYS)
    codes = codes_of(lines[:, tokens, :, :, lane].swapaxes(0, 1), plain)
    stored = (codes * scales[..., None].astype(np.float64)).reshape(cache.heads, count, dim)
    return CachedHeads(plain, size, stored, anchors)


def read_values(cache: LayerCache, ring: RingBuffer, entries: Indices, dim: int, size: int) -> CachedHeads:
    """Return the values of entries, whose heads have `size` of `dim` dimensions."""
    count = len(entries)
    kind, tokens = cache.types["v_type"], np.arange(count)
    pages, within = pages_of(cache.v, cache.heads, ring, entries)
    if kind in FLOAT_TYPES:
        stored = pages.view(FLOAT_TYPES[kind]).reshape(cache.heads, count, PAGE_SIZE, dim)
        return CachedHeads(kind, size, stored[:, tokens, within])
    n_groups = dim // GROUP
    scales = pages[..., : 2 * n_groups * PAGE_SIZE].copy().view(np.float16)
    scales = scales.reshape(cache.heads, count, n_groups, PAGE_SIZE)[:, tokens, :, within].swapaxes(0, 1)
    stored = pages[..., 2 * n_groups * PAGE_SIZE :].reshape(cache.heads, count, PAGE_SIZE, n_groups, -1)
    codes = codes_of(stored[:, tokens, within], kind)
    return CachedHeads(kind, size, (codes * scales[..., None].astype(np.float64)).reshape(cache.heads, count, dim))


def pages_of(region: Region, heads: int, ring: RingBuffer, entries: Indices) -> tuple[NDArray[np.uint8], Indices]:
    """Return the page of each entry, uint8 (heads, entries, bytes), and its number in it."""
    page, within = np.divmod(entries, PAGE_SIZE)
    pages = region.view(np.uint8).reshape(heads, len(ring.pages), -1)[:, page]
    return pages, within


def codes_of(lines: NDArray[np.uint8], kind: str) -> NDArray[np.float64]:
    """Return the codes of groups of 32 values: bytes, or 4 bits, of which the low ones belong to the first half."""
    if kind == "q8_0":
        return np.ascontiguousarray(lines).view(np.int8).astype(np.float64)
    return np.concatenate([lines & 15, lines >> 4], axis=-1).astype(np.float64) - 8
