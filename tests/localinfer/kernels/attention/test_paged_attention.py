"""Attention and KV cache kernels, compared with float64: all types, odd shapes, any number of threads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import gguf
import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

from localinfer.graph.properties.attention import alibi_slopes, bias_rows, relative_buckets
from localinfer.kernels.layout import (
    ANCHORED_TYPES,
    GROUP_BYTES,
    MIN_TILES_UNSPLIT,
    PAGE_SIZE,
    PANEL_KEYS,
    attention_scratch_bytes,
    page_bytes,
    row_state_bytes,
    tile_rows,
)

Floats = NDArray[np.float32]
Pages = Sequence[int]
KINDS = list(GROUP_BYTES)
UNSCALED = ("f32", "f16")  # types that are not transformed
NEVER = np.iinfo(np.int32).max
EVERYTHING = 1 << 30
CHUNK = 2  # pages


def transformed(x: Floats) -> Floats:
    """Return the Walsh-Hadamard transform of the last axis, in float32 and in the kernel's order."""
    n = x.shape[-1] & -x.shape[-1]
    y, distance = x.astype(np.float32).reshape(-1, n), 1
    while distance < n:
        pairs = y.reshape(-1, 2, distance)
        y = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1, n)
        if distance == 8:
            y = y * np.float32(n**-0.5)
        distance *= 2
    return y.reshape(x.shape)


def encoded(x: Floats, kind: str) -> NDArray[np.uint8]:
    """Encode rows as ggml blocks of 32 values: (..., n / 32, bytes)."""
    blocks = gguf.quantize(np.ascontiguousarray(x), gguf.GGMLQuantizationType[kind.upper()])
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(*x.shape[:-1], -1, GROUP_BYTES[kind])


def round_trip(x: Floats, kind: str, anchors: Floats | None = None) -> NDArray[np.float64]:
    """Return values after a round trip through the cache, transformed if the type is quantized, and relative to the
    anchors if there are any."""
    if kind in UNSCALED:
        return x.astype({"f16": np.float16, "f32": np.float32}[kind]).astype(np.float64)
    anchor_codes = np.zeros_like(x) if anchors is None else transformed(anchors).astype(np.float16).astype(np.float32)
    blocks = encoded(transformed(x) - anchor_codes, kind).reshape(*x.shape[:-1], -1)
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind.upper()]).astype(np.float64) + anchor_codes


@dataclass
class Layer:
    """A layer's cache and its kernels, called as the graph calls them. If `shared` is not 0, values are the last
    `shared` dimensions of the keys. With several `sequences`, segments of one token have tiles of their own."""

    group: int
    head_dim: int
    k_type: str
    v_type: str
    kv_heads: int = 2
    capacity: int = 512
    bias: Floats | None = None  # (kv_heads, head_dim); if given, pages of keys have anchors
    shared: int = 0
    sequences: int = 4
    k: NDArray[np.uint8] = field(init=False)
    v: NDArray[np.uint8] = field(init=False)
    positions: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        kinds = ((self.k_type, self.bias is not None), (self.v_type, False))
        blocks = self.kv_heads * self.capacity // PAGE_SIZE
        self.k, self.v = (
            np.zeros(blocks * page_bytes(kind, self.wide, anchored=anchored), np.uint8) for kind, anchored in kinds
        )
        self.positions = np.full(self.capacity, NEVER, np.int32)

    @property
    def wide(self) -> int:
        """The values of a cache entry."""
        return -(-self.head_dim // 32) * 32

    @property
    def key_kind(self) -> str:
        """The kernels' name of the key type."""
        return self.k_type if self.bias is None else ANCHORED_TYPES[self.k_type]

    def append(self, k: Floats, v: Floats, entries: NDArray[np.int32], positions: NDArray[np.int32]) -> None:
        """Store keys and values (tokens, kv_heads, head_dim) in their entries, without rotation."""
        count = len(k)
        arguments: dict[str, Any] = {
            "tokens": np.array([count]), "k": k.copy(), "v": v.copy(), "heads": self.kv_heads, "n_rot": 0,
            "table": 0, "block_table": 0, "bias": 0 if self.bias is None else self.bias, "weight": 0,
            "eps": 1e-5, "entries": entries, "k_cache": self.k, "v_cache": self.v,
            "capacity": self.capacity, "key_size": self.head_dim, "key_dim": self.wide,
            "value_size": 0 if self.shared else self.head_dim, "value_dim": 0 if self.shared else self.wide,
        }  # fmt: skip
        kernels.run(
            "localinfer.kernels.attention.append:append", arguments, pairs="halves", norm="none",
            k_type=self.key_kind, v_type=self.v_type,
        )  # fmt: skip
        self.positions[entries] = positions

    def attend(
        self, q: Floats, positions: NDArray[np.int32], *, window: int = EVERYTHING, sinks: int = 0, n_threads: int = 1,
        is_prefill: bool = True, q_sink: Floats | None = None, cap: float = 0.0, attn_sinks: Floats | None = None,
        slopes: Floats | None = None, buckets: Floats | None = None, segments: Sequence[tuple[int, Pages]] = (),
        chosen: NDArray[np.bool_] | None = None, compressed_page: int = 0,
    ) -> Floats:  # fmt: skip
        """Return y (tokens, heads, head_dim) for q of the same shape, from the kernels for large or small batches.
        Without segments, all tokens attend to all pages; of these only to the `chosen` entries, (tokens, choices,
        capacity)."""
        count, rows, single = len(q), tile_rows(self.group, is_prefill), tile_rows(self.group, large_batch=False)
        used = int(np.max(np.flatnonzero(self.positions != NEVER))) // PAGE_SIZE + 1
        segments = segments or [(count, range(used))]
        tables = [np.array([*pages, 0], np.int32) for _, pages in segments]
        numbers = [(n, table.ctypes.data, len(table) - 1) for (n, _), table in zip(segments, tables, strict=True)]
        chunks = max(-(-len(pages) // CHUNK) for _, pages in segments)
        value_dim, value_size = (self.shared,) * 2 if self.shared else (self.wide, self.head_dim)
        y = np.full((*q.shape[:2], value_size), np.nan, np.float32)
        padding = ((0, 0), (0, 0), (0, self.wide - self.head_dim))
        q, q_sink = (np.ascontiguousarray(np.pad(each, padding)) for each in (q, q if q_sink is None else q_sink))
        arguments: dict[str, Any] = {
            "tokens": np.array([count]), "q": q, "q_sink": q_sink, "k_cache": self.k,
            "v_cache": self.k if self.shared else self.v, "capacity": self.capacity, "entry_positions": self.positions,
            "query_positions": positions, "oldest": positions - np.int32(window - 1), "newest": positions,
            "segments": np.array([len(segments), *chain.from_iterable(numbers)]), "sink_pages": sinks,
            "compressed_page": compressed_page, "group": self.group, "kv_heads": self.kv_heads,
            "key_size": self.head_dim, "key_dim": self.wide,
            "value_size": value_size, "value_dim": value_dim,
            "scale": self.head_dim**-0.5, "cap": cap * LOG2_E,
            "attn_sinks": 0 if attn_sinks is None else attn_sinks, "slopes": 0 if slopes is None else slopes,
            "biases": 0 if buckets is None else bias_rows(buckets, causal=True),
            "chosen": 0 if chosen is None else np.packbits(chosen, axis=2, bitorder="little"),
            "choices": 1 if chosen is None else chosen.shape[1],
            "words": self.capacity // PAGE_SIZE,
            "chunk": CHUNK,
            "partial": np.zeros(MIN_TILES_UNSPLIT * chunks * rows * row_state_bytes(self.wide), np.uint8), "y": y,
            "q_out": 0,
            "stop": np.zeros(1, np.int64),
        }  # fmt: skip
        variant: dict[str, Any] = {
            "k_type": self.key_kind, "v_type": self.v_type, "values_in_keys": int(self.shared > 0),
            "capped": int(cap > 0), "sloped": int(slopes is not None), "biased": int(buckets is not None),
            "selected": int(chosen is not None),
            "rows": rows, "single": single if self.sequences > 1 else rows, "tile": 0, "passes": 1,
        }  # fmt: skip
        assert attention_scratch_bytes(self.group, self.wide, self.wide) <= kernels.SCRATCH_BYTES
        kernels.run("localinfer.kernels.attention.paged_attention:attention", arguments, n_threads, **variant)
        shared = (
            "tokens", "segments", "group", "kv_heads", "value_size", "value_dim", "attn_sinks", "chunk", "partial",
            "y", "q_out",
        )  # fmt: skip
        joined = {name: arguments[name] for name in shared} | {
            "tile_rows": tile_rows(self.group, large_batch=False), "separate_tokens": int(self.sequences > 1),
            "entry_dim": self.wide,
        }  # fmt: skip
        kernels.run(
            "localinfer.kernels.attention.combine:combine", joined, n_threads, min_rows=tile_rows(1, is_prefill),
            v_type=self.v_type, tile=0, passes=1,
        )  # fmt: skip
        return y

    def reference(
        self, q: Floats, positions: NDArray[np.int32], k: Floats, v: Floats, at: NDArray[np.int32],
        window: int = EVERYTHING, cap: float = 0.0, attn_sinks: Floats | None = None,
        slopes: Floats | None = None, buckets: Floats | None = None, hidden: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Compute the same in float64 from the keys and values at these positions, of which tokens do not attend to the
        `hidden` ones, (query heads or 1, tokens, positions)."""
        query = q.astype(np.float64) if self.k_type in UNSCALED else transformed(q).astype(np.float64)
        anchors = None if self.bias is None else np.broadcast_to(self.bias, k.shape)
        entries = round_trip(k, self.k_type, anchors), round_trip(v, self.v_type)
        keys, values = (np.repeat(each, self.group, axis=1) for each in entries)
        scores = np.einsum("thd,chd->htc", query, keys) * self.head_dim**-0.5
        scores = cap * np.tanh(scores / cap) if cap else scores
        back = positions[:, None] - at[None, :]
        scores -= 0 if slopes is None else slopes[:, None, None].astype(np.float64) * back
        if buckets is not None:
            scores += buckets[relative_buckets(-back, len(buckets), causal=True)].transpose(2, 0, 1)
        unseen = (back < 0) | (back >= window) | (np.zeros((1, 1, 1), bool) if hidden is None else hidden)
        scores[np.broadcast_to(unseen, scores.shape)] = -np.inf
        sinks = np.full(len(scores), -np.inf) if attn_sinks is None else attn_sinks
        top = np.maximum(scores.max(axis=-1, keepdims=True), sinks[:, None, None])
        weights, more = np.exp(scores - top), np.exp(sinks[:, None, None] - top)
        y = np.einsum("htc,chd->thd", weights / (weights.sum(axis=-1, keepdims=True) + more), values)
        y = y if self.v_type in UNSCALED else transformed(y.astype(np.float32)).astype(np.float64)
        return y[..., -self.shared :] if self.shared else y


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def filled(layer: Layer, count: int) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """Return a layer's keys and values at positions 0 .. count - 1, in entries that start in the middle of the ring
    buffer."""
    k, v = (normal(count, layer.kv_heads, layer.head_dim, seed=seed) for seed in (1, 2))
    at = np.arange(count, dtype=np.int32)
    layer.append(k, v, (at + 300) % layer.capacity, at)
    return k, v, at


LOG2_E = 1.4426950408889634
SHAPES = [
    (5, 80, "f16", "f32"),
    (2, 100, "f16", "f16"),
    (17, 40, "f32", "f16"),
    (1, 32, "f16", "f16"),
    (2, 96, "f32", "f32"),
    (3, 64, "q8_0", "q4_0"),
    (8, 96, "q4_0", "q8_0"),
    (4, 256, "f16", "q8_0"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_encoded_as_in_ggml(kind: str) -> None:
    layer = Layer(1, 64, kind, kind)
    k, v, _ = filled(layer, 200)
    k[7], v[7], k[8, :, 1:], v[9, :, ::2] = 0, 0, 0, -v[9, :, 1::2]
    entries = np.random.default_rng(3).permutation(layer.capacity)[:200].astype(np.int32)
    layer.append(k, v, entries, np.arange(200, dtype=np.int32))
    transform = (lambda x: x) if kind in UNSCALED else transformed
    size, scale = GROUP_BYTES[kind], 0 if kind in UNSCALED else 2
    element, groups = {"f32": 4, "f16": 2}.get(kind, 1), layer.head_dim // 32

    panels = layer.k.reshape(layer.kv_heads, -1, groups, size * PANEL_KEYS)
    scales, lines = panels[..., : scale * PANEL_KEYS], panels[..., scale * PANEL_KEYS :]
    codes = lines.reshape(*lines.shape[:-1], -1, PANEL_KEYS, element).swapaxes(-3, -2)
    k_blocks = np.concatenate(
        [scales.reshape(*scales.shape[:-1], PANEL_KEYS, -1), codes.reshape(*codes.shape[:-2], -1)], -1
    )
    actual = k_blocks.swapaxes(2, 3).reshape(layer.kv_heads, layer.capacity, groups, size)[:, entries]
    np.testing.assert_array_equal(actual.swapaxes(0, 1), encoded(transform(k), kind))

    blocks = layer.v.reshape(layer.kv_heads, -1, PAGE_SIZE * size * groups)
    scales, rows = blocks[..., : scale * PAGE_SIZE * groups], blocks[..., scale * PAGE_SIZE * groups :]
    of_groups = scales.reshape(*blocks.shape[:2], groups, PAGE_SIZE, -1).swapaxes(2, 3)
    v_blocks = np.concatenate([of_groups, rows.reshape(*blocks.shape[:2], PAGE_SIZE, groups, -1)], -1)
    actual = v_blocks.reshape(layer.kv_heads, layer.capacity, groups, size)[:, entries]
    np.testing.assert_array_equal(actual.swapaxes(0, 1), encoded(transform(v), kind))


@pytest.mark.parametrize(("group", "head_dim", "k_type", "v_type"), SHAPES)
@pytest.mark.parametrize("window", [EVERYTHING, 100])
def test_attention_agrees_with_float64(group: int, head_dim: int, k_type: str, v_type: str, window: int) -> None:
    layer = Layer(group, head_dim, k_type, v_type)
    k, v, at = filled(layer, 400)
    positions = np.arange(370, 400, dtype=np.int32)
    q = 2 * normal(30, 2 * group, head_dim)
    y = layer.attend(q, positions, window=window)
    np.testing.assert_allclose(y, layer.reference(q, positions, k, v, at, window), atol=1e-5)


@pytest.mark.parametrize("is_prefill", [False, True])
@pytest.mark.parametrize(
    ("group", "k_type", "shared", "choices"),
    [(5, "f16", 0, 1), (3, "f32", 64, 1), (16, "q8_0", 64, 1), (5, "f16", 0, 2)],
)
def test_tokens_attend_to_chosen_entries_only(
    group: int, k_type: str, shared: int, choices: int, is_prefill: bool
) -> None:
    layer = Layer(group, 96, k_type, k_type, shared=shared)
    k, v, at = filled(layer, 400)
    positions, q = np.arange(370, 400, dtype=np.int32), 2 * normal(30, 2 * group, 96)
    chosen = np.random.default_rng(1).random((30, choices, layer.capacity)) < 0.02
    chosen[..., :64] = False  # a page that no token attends to
    chosen[np.arange(30), :, (positions + 300) % layer.capacity] = True
    values, hidden = k if shared else v, ~chosen[..., (at + 300) % layer.capacity].swapaxes(0, 1)
    expected = layer.reference(q, positions, k, values, at, hidden=hidden.repeat(2 * group // choices, axis=0))
    y = layer.attend(q, positions, chosen=chosen, is_prefill=is_prefill, n_threads=2)
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize("is_prefill", [False, True])
@pytest.mark.parametrize(("group", "head_dim", "k_type"), [(6, 128, "q8_0"), (7, 64, "q4_0"), (1, 96, "q8_0")])
def test_keys_are_quantized_around_an_anchor(group: int, head_dim: int, k_type: str, is_prefill: bool) -> None:
    bias = 100 * normal(2, head_dim, seed=4)
    layer = Layer(group, head_dim, k_type, "f16", bias=bias, sequences=1)
    k, v, at = normal(400, 2, head_dim, seed=1) + bias, normal(400, 2, head_dim, seed=2), np.arange(400, dtype=np.int32)
    layer.append(k, v, (at + 300) % layer.capacity, at)
    count = 30 if is_prefill else 1
    q, positions = normal(count, 2 * group, head_dim) / 10, np.arange(400 - count, 400, dtype=np.int32)
    y = layer.attend(q, positions, is_prefill=is_prefill)
    np.testing.assert_allclose(y, layer.reference(q, positions, k, v, at), atol=2e-4)
    np.testing.assert_array_equal(layer.attend(q, positions, is_prefill=is_prefill, n_threads=3), y)


# Each type, each number of query heads in a tile, and each number of dimensions that are no values.
@pytest.mark.parametrize(
    ("kind", "group", "key"),
    [*((kind, 16, 96) for kind in KINDS), ("f16", 5, 160), ("q4_0", 5, 160), ("f32", 40, 96), ("q8_0", 40, 96)],
)
def test_values_can_be_the_last_dimensions_of_keys(kind: str, group: int, key: int) -> None:
    layer = Layer(group, key, kind, kind, kv_heads=1, shared=64, sequences=1)
    k, _, at = filled(layer, 400)
    q, positions = 2 * normal(70, group, key), np.arange(330, 400, dtype=np.int32)
    y = layer.attend(q, positions)
    np.testing.assert_allclose(y, layer.reference(q, positions, k, k, at), atol=1e-5)
    for count, n_threads, is_prefill in [(1, 3, False), (2, 1, False), (3, 5, True)]:
        np.testing.assert_array_equal(
            layer.attend(q[-count:], positions[-count:], n_threads=n_threads, is_prefill=is_prefill), y[-count:]
        )


def test_scores_are_soft_capped() -> None:
    layer = Layer(2, 96, "f32", "f32")
    k, v, at = filled(layer, 400)
    q, positions = 30 * normal(30, 4, 96), np.arange(370, 400, dtype=np.int32)
    y = layer.attend(q, positions, cap=20.0)
    np.testing.assert_allclose(y, layer.reference(q, positions, k, v, at, cap=20.0), atol=2e-5)
    assert abs(y - layer.reference(q, positions, k, v, at)).max() > 0.01


@pytest.mark.parametrize("window", [EVERYTHING, 100])
def test_scores_decrease_with_the_distance(window: int) -> None:
    layer, slopes = Layer(3, 96, "f32", "f32"), alibi_slopes(6, 8.0).astype(np.float32)
    k, v, at = filled(layer, 400)
    q, positions = 2 * normal(30, 6, 96), np.arange(370, 400, dtype=np.int32)
    y = layer.attend(q, positions, slopes=slopes, window=window)
    np.testing.assert_allclose(y, layer.reference(q, positions, k, v, at, window, slopes=slopes), atol=1e-5)
    few = layer.attend(q[-2:], positions[-2:], slopes=slopes, window=window, n_threads=3, is_prefill=False)
    np.testing.assert_array_equal(few, y[-2:])


def test_each_distance_has_a_bias() -> None:
    """Also beyond the last bucket. Keys are in pages as without a ring buffer."""
    layer, buckets = Layer(3, 96, "f32", "f32"), 3 * normal(32, 6, seed=5)
    at = np.arange(400, dtype=np.int32)
    k, v = (normal(400, layer.kv_heads, 96, seed=seed) for seed in (1, 2))
    layer.append(k, v, at, at)
    q, positions = 2 * normal(390, 6, 96), np.arange(10, 400, dtype=np.int32)
    y = layer.attend(q, positions, buckets=buckets)
    np.testing.assert_allclose(y, layer.reference(q, positions, k, v, at, buckets=buckets), atol=1e-5)
    few = layer.attend(q[-2:], positions[-2:], buckets=buckets, n_threads=3, is_prefill=False)
    np.testing.assert_array_equal(few, y[-2:])


def test_buckets_are_those_of_t5() -> None:
    """Of 32 buckets, the nearest 16 distances have one each; in both directions, 8 each."""
    ahead = np.array([-500, -128, -127, -113, -32, -20, -17, -16, -15, 0, 5])
    np.testing.assert_array_equal(
        relative_buckets(ahead, 32, causal=True), [31, 31, 31, 31, 21, 17, 16, 16, 15, 0, 0]
    )
    both = np.array([-200, -91, -64, -16, -8, -7, 0, 1, 8, 16, 64, 91, 200])
    np.testing.assert_array_equal(
        relative_buckets(both, 32, causal=False), [15, 15, 14, 10, 8, 7, 0, 17, 24, 26, 30, 31, 31]
    )


def test_slopes_are_those_of_the_paper() -> None:
    np.testing.assert_array_equal(alibi_slopes(8, 8.0), 2.0 ** -np.arange(1, 9))
    np.testing.assert_allclose(alibi_slopes(6, 8.0), 2.0 ** -np.array([2, 4, 6, 8, 1, 3]))  # two between those of four


@pytest.mark.parametrize(("group", "head_dim", "k_type", "v_type"), SHAPES)
def test_the_number_of_threads_does_not_change_bits(group: int, head_dim: int, k_type: str, v_type: str) -> None:
    layer = Layer(group, head_dim, k_type, v_type)
    filled(layer, 400)
    q, positions = normal(90, 2 * group, head_dim), np.arange(310, 400, dtype=np.int32)
    whole = layer.attend(q, positions)  # more than MIN_TILES_UNSPLIT tiles for some shapes
    for count, n_threads, is_prefill in [(90, 7, True), (2, 1, True), (2, 50, True), (4, 1, False), (1, 3, False)]:
        y = layer.attend(q[-count:], positions[-count:], n_threads=n_threads, is_prefill=is_prefill)
        np.testing.assert_array_equal(y, whole[-count:])


@pytest.mark.parametrize("counts", [[1, 1], [1, 5, 1], [30, 1, 2, 40]])
@pytest.mark.parametrize(("group", "head_dim", "k_type", "v_type"), SHAPES[:6])
def test_sequences_in_a_batch_attend_to_their_own_pages(
    group: int, head_dim: int, k_type: str, v_type: str, counts: list[int]
) -> None:
    """Each sequence computes the same bits as alone, wherever its pages are."""
    pages = np.random.default_rng(4).permutation(32).reshape(4, 8)
    batched = Layer(group, head_dim, k_type, v_type, capacity=2048)
    segments, queries, newest, expected = [], [], [], []
    for number, (count, own) in enumerate(zip(counts, pages, strict=False)):
        alone, length = Layer(group, head_dim, k_type, v_type), 100 * number + 45
        k, v = (normal(length, 2, head_dim, seed=10 * number + i) for i in range(2))
        at, q = np.arange(length, dtype=np.int32), normal(count, 2 * group, head_dim, seed=number)
        alone.append(k, v, at, at)
        batched.append(k, v, (own[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE).astype(np.int32), at)
        expected.append(alone.attend(q, at[-count:], is_prefill=count > 2))
        np.testing.assert_allclose(expected[-1], alone.reference(q, at[-count:], k, v, at), atol=1e-5)
        segments.append((count, own[: -(-length // PAGE_SIZE)].tolist()))
        queries.append(q)
        newest.append(at[-count:])
    for n_threads in (1, 2, 7, 50):
        y = batched.attend(
            np.concatenate(queries),
            np.concatenate(newest),
            segments=segments,
            n_threads=n_threads,
            is_prefill=sum(counts) > 2,
        )
        np.testing.assert_array_equal(y, np.concatenate(expected))


def test_attention_sinks_have_their_own_queries() -> None:
    layer = Layer(3, 64, "q8_0", "q4_0")
    k, v = (normal(200, 2, 64, seed=seed) for seed in (1, 2))
    at = np.arange(200, dtype=np.int32)
    layer.append(k, v, np.where(at < 4, at, at - 4 + PAGE_SIZE).astype(np.int32), at)
    q, q_sink, last = normal(1, 6, 64), normal(1, 6, 64, seed=5), np.array([199], np.int32)
    y = layer.attend(q, last, window=50, sinks=1, q_sink=q_sink)
    keys, values = np.repeat(round_trip(k, "q8_0"), 3, axis=1), np.repeat(round_trip(v, "q4_0"), 3, axis=1)
    near, sunk = (np.einsum("hd,chd->hc", transformed(each[0]).astype(float), keys) / 8 for each in (q, q_sink))
    scores = np.where(at < 4, sunk, np.where(at > 149, near, -np.inf))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    mixed = np.einsum("hc,chd->hd", weights / weights.sum(axis=1, keepdims=True), values)
    np.testing.assert_allclose(y[0], transformed(mixed.astype(np.float32)), atol=1e-5)


@pytest.mark.parametrize("count", [1, 40])
def test_the_window_does_not_limit_compressed_entries(count: int) -> None:
    """Entries of the pages from 2 on have the last position of a run of 8; nothing is stored for the other tokens."""
    layer = Layer(5, 64, "f16", "f16", shared=64, capacity=64 * 6)
    at, ends = np.arange(120, dtype=np.int32), np.arange(7, 120, 8, dtype=np.int32)
    k, compressed = normal(120, 2, 64, seed=1), normal(120, 2, 64, seed=2)
    layer.append(k, k, at, at)
    entries = np.where(at % 8 == 7, 2 * PAGE_SIZE + at // 8, -1).astype(np.int32)
    layer.append(compressed, compressed, entries, layer.positions[entries])
    layer.positions[entries[ends]] = ends
    q, positions = normal(count, 10, 64), at[-count:]
    y = layer.attend(q, positions, window=20, compressed_page=2, is_prefill=count > 2)
    keys = np.concatenate([k, compressed[ends]])
    back = positions[:, None] - np.concatenate([at, ends])[None, :]
    hidden = (back >= 20) & (np.arange(len(keys)) < 120)
    expected = layer.reference(q, positions, keys, keys, np.concatenate([at, ends]), hidden=hidden)
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize("count", [1, 30, 90])
def test_learned_sinks(count: int) -> None:
    """Learned sinks far below and far above the other scores."""
    layer = Layer(3, 64, "q8_0", "q4_0")
    k, v, at = filled(layer, 400)
    q, positions = 2 * normal(count, 6, 64), np.arange(400 - count, 400, dtype=np.int32)
    sinks = np.array([-1e4, -1.0, 0.5, 6.0, 40.0, 1e4], np.float32)
    y = layer.attend(q, positions, attn_sinks=sinks, is_prefill=count > 2)
    np.testing.assert_allclose(y, layer.reference(q, positions, k, v, at, attn_sinks=sinks), atol=1e-5)
    np.testing.assert_array_equal(layer.attend(q, positions, attn_sinks=sinks, is_prefill=count > 2, n_threads=5), y)
    np.testing.assert_array_equal(y[:, 0], layer.attend(q, positions, is_prefill=count > 2)[:, 0])
    assert not y[:, 5].any()


def test_large_scores_do_not_overflow() -> None:
    layer = Layer(1, 32, "f16", "f16")
    k, v, at = filled(layer, 300)
    positions = np.array([299], np.int32)
    for size in (0.0, 1e-30, 300.0, 3e4):
        q = np.float32(size) * normal(1, 2, 32)
        expected = layer.reference(q, positions, k, v, at)
        np.testing.assert_allclose(layer.attend(q, positions), expected, atol=1e-5 + 1e-7 * size)


def test_non_finite_values_propagate() -> None:
    for group, head_dim, k_type, v_type in SHAPES[3:7]:  # keys and values of all types
        layer = Layer(group, head_dim, k_type, v_type)
        k, v, _ = filled(layer, 5)
        v[2, 0, 3] = np.inf
        layer.append(k, v, np.arange(5, dtype=np.int32), np.arange(5, dtype=np.int32))
        y = layer.attend(normal(1, 2 * group, head_dim), np.array([4], np.int32))
        assert not np.isfinite(y[0, :group]).all(axis=1).any()
        assert np.isfinite(y[0, group:]).all()


def test_the_hadamard_transform_is_its_own_inverse() -> None:
    x, y = normal(50, 96), normal(50, 96, seed=1)
    np.testing.assert_allclose(transformed(transformed(x)), x, atol=2e-6)
    np.testing.assert_allclose((transformed(x) * transformed(y)).sum(axis=1), (x * y).sum(axis=1), atol=2e-5)
