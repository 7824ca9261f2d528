"""The attention ops, and the memory that layers share: ring buffers, RoPE tables and partial results."""

from typing import NamedTuple

import numpy as np

from localinfer.gguf.reader import Tensor
from localinfer.graph.cache.ring_buffer import LayerCache, RingBuffer, VisiblePositions
from localinfer.graph.ops.buffers import Buffer, ConvertedActivations, Region
from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH, ComputeGraph
from localinfer.graph.ops.cost import Cost, CostModel
from localinfer.graph.points import KEYS, QUERIES
from localinfer.graph.properties.attention import AttentionHeads, AttentionSpec, alibi_slopes
from localinfer.graph.properties.model_properties import ModelProperties
from localinfer.graph.properties.rope import NO_ROPE, Rope
from localinfer.graph.properties.tensors import constant_tensor
from localinfer.graph.recording.context import Context
from localinfer.graph.recording.points import PointRecorder
from localinfer.graph.recording.rings import create_ring
from localinfer.graph.recording.rope_tables import Angles, BlockTable, RopeTable
from localinfer.kernels.layout import (
    ANCHORED_TYPES,
    MIN_TILES_UNSPLIT,
    PAGE_SIZE,
    append_scratch_bytes,
    attention_scratch_bytes,
    row_state_bytes,
    tile_rows,
)
from localinfer.kernels.signatures import APPEND, ATTENTION, COMBINE, ROPE
from quant.jit.kernel import Constants

LOG2_E = 1.4426950408889634  # the kernels compute 2^score


class HeadNorms(NamedTuple):
    """The RMSNorm of the heads of queries and keys: "before_rope", "after_rope", "unweighted" (after RoPE) or "none",
    and its weights."""

    mode: str
    q: Tensor | int = 0
    k: Tensor | int = 0


NO_NORMS = HeadNorms("none")


class LayerAttention(NamedTuple):
    """The attention of one layer, with its tensors.

    `name` is the prefix of its ops, and identifies its cache. `kv_source` is the name of the layer whose keys and
    values it uses, if these are not its own. `cache` is the name of the layer whose cache it uses, if it has none.
    With `of_encoder`, tokens attend to all tokens of an encoder (`operations.cross_attention`). `sink_scores` are the
    learned scores of attention sinks. `k_bias` is the bias that all keys contain, if any, before RoPE. No token attends
    to the first `n_masked` positions. `v_weight` is the matrix whose product the values are, if no other operation
    changes them. `biases` are those of `bias_rows`.
    """

    name: str
    heads: AttentionHeads
    spec: AttentionSpec
    norms: HeadNorms = NO_NORMS
    kv_source: str | None = None
    sink_scores: Tensor | None = None
    k_bias: Tensor | None = None
    n_masked: int = 0
    v_weight: Tensor | None = None
    biases: Tensor | None = None
    cache: str = ""
    of_encoder: bool = False

    @property
    def cache_name(self) -> str:
        """The name of the layer whose cache it uses."""
        return self.kv_source or self.cache or self.name

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return self.spec.scale or self.heads.key**-0.5

    @property
    def alibi_slopes(self) -> Tensor | int:
        """How much the scores of each head decrease with the distance of a key; 0 if they do not."""
        if not self.spec.max_alibi_bias:
            return 0
        slopes = alibi_slopes(self.heads.count, self.spec.max_alibi_bias).astype(np.float32)
        return constant_tensor(f"{self.name}alibi", slopes)


class AttentionRecorder:
    """Records the attention of all layers, and holds the memory that they share."""

    def __init__(
        self, graph: ComputeGraph, context: Context, properties: ModelProperties, points: PointRecorder
    ) -> None:
        self.graph, self.context, self.properties, self.points = graph, context, properties, points
        self.layers: dict[str, tuple[LayerAttention, VisiblePositions]] = {}
        self.positions = graph.region(4 * graph.batch)
        self.rope_tables: dict[tuple[Rope, bool], RopeTable] = {}
        self.block_tables: dict[tuple[Rope, int], BlockTable] = {}
        self.rings: dict[tuple[int, bool, bool, int, bool, int, bool], RingBuffer] = {}
        self.caches: dict[str, LayerCache] = {}
        self._partial = graph.region(0)
        # What an indexer writes, for all layers (`operations.indexer`): scores, and the bits of entries that are
        # chosen, once for all key heads of a token or `choices` times.
        self.index_scores, self.chosen, self.choices = graph.region(0), graph.region(0), 1
        # int32 [batch]: the first and last position of the encoder's tokens, for each token of the batch.
        self.encoder_begin, self.encoder_last = (
            graph.region(4 * graph.batch if context.encoder_decoder else 0) for _ in range(2)
        )

    def share_caches(self, other: "AttentionRecorder") -> None:
        """Use the caches of another graph of the same model."""
        self.rings, self.caches = other.rings, other.caches

    def attend(
        self, layer: LayerAttention, q: Buffer, k: Buffer | None, v: Buffer | None, compressed: Buffer | None = None
    ) -> Buffer:
        """Write keys and values to the cache and attend to them, or to those of the layer `kv_source`; return float32
        [token][head][value].

        Without v, the values are the last dimensions of the keys. `compressed` are the keys of compressed runs.
        """
        layer = layer._replace(v_weight=self.graph.weight_of(v) if v else None)
        heads, rope = layer.heads, layer.spec.rope or NO_ROPE
        table, query_table = self._rope_table(rope), self._rope_table(rope, with_temperature=True)
        if v is None and k is not None:
            self._require_transformable(heads)
        cache = self._cache(layer, values=v is not None)
        ring = self._ring(layer, anchored=cache.anchored)
        self.layers[layer.name] = layer, ring.visible._replace(causal=ring.visible.causal and not layer.of_encoder)
        q_sink = q
        if query_table.sinks and ring.sinks:
            q_sink = self.graph.buffer(heads.count * heads.key_dim, q.rows)
            self._rope_queries(layer, q, q_sink, query_table, query_table.sinks, barrier=True)
        rotated = q if heads.key == heads.key_dim else self.graph.buffer(heads.count * heads.key_dim, q.rows)
        if rotated is not q or rope.n_rot or layer.norms.q:
            barrier = rotated is not q or k is None
            self._rope_queries(layer, q, rotated, query_table, query_table.rows, barrier=barrier)
        if q_sink is q:
            self.points.add(f"{layer.name}{QUERIES}", rotated, heads=heads.count, size=heads.key)
        if k is not None:
            if not cache.anchored and self.points.asks_for(f"{layer.name}{KEYS}"):
                layer, table = self._rope_keys(layer, k, table)
            self._append(layer, k, v, table, ring, cache)
        if compressed is not None:
            self._append_compressed(layer, compressed, ring, cache)
        return self._attend_op(layer, rotated, q_sink if q_sink is not q else rotated, ring, cache)

    def index(self, layer: LayerAttention, q: Buffer, k: Buffer) -> tuple[RingBuffer, Buffer, Region]:
        """Rotate the queries of an indexer, and write its keys to a cache of their own. Return the ring buffer of the
        positions that it may choose, the rotated queries and the keys."""
        heads, rope = layer.heads, layer.spec.rope or NO_ROPE
        ring, table, rotated = self._ring(layer, anchored=False), self._rope_table(rope), self.graph.buffer(q.n, q.rows)
        if layer.name not in self.caches:
            self.caches[layer.name] = ring.add_layer(self.graph, heads, "f32", "f32", values=False)
        self._rope_queries(layer, q, rotated, table, table.rows, barrier=True)
        if layer.spec.compression:
            self._append_compressed(layer, k, ring, self.caches[layer.name])
        else:
            self._append(layer, k, None, table, ring, self.caches[layer.name])
        return ring, rotated, self.caches[layer.name].k

    def rotate(self, x: Buffer, heads: int, rope: Rope) -> None:
        """Rotate heads, in place."""
        self.graph.op(
            "rotate", ROPE, x.rows, constants={"pairs": rope.pairs, "norm": "none"}, chunks=(1, 8), x=x, heads=heads,
            size=x.n // heads, dim=x.n // heads, n_rot=rope.n_rot, table=self._rope_table(rope).rows, weight=0,
            eps=self.properties.eps, y=x,
        )  # fmt: skip

    def store(self, layer: LayerAttention, k: Buffer, v: Buffer | None) -> None:
        """Write keys and values to the cache of a layer, without attention to them. Without v, the values are the last
        dimensions of the keys."""
        layer = layer._replace(v_weight=self.graph.weight_of(v) if v else None)
        if v is None:
            self._require_transformable(layer.heads)
        cache, table = self._cache(layer, values=v is not None), self._rope_table(layer.spec.rope or NO_ROPE)
        self._append(layer, k, v, table, self._ring(layer, anchored=cache.anchored), cache)

    def _cache(self, layer: LayerAttention, *, values: bool = True) -> LayerCache:
        """Return the cache that a layer uses. It is created if it does not exist yet."""
        name = layer.cache_name
        if name not in self.caches:
            anchored = layer.k_bias is not None and self.context.k_type in ANCHORED_TYPES
            ring = self._ring(layer, anchored=anchored)
            self.caches[name] = ring.add_layer(
                self.graph, layer.heads, self.context.k_type, self.context.v_type, values=values
            )
        return self.caches[name]

    def _require_transformable(self, heads: AttentionHeads) -> None:
        """Raise UnsupportedError for a quantized cache of keys whose last dimensions are the values, unless these are
        whole blocks of the transform of a key (`localinfer.kernels.attention.hadamard`)."""
        block = heads.key_dim & -heads.key_dim
        if self.context.k_type in ANCHORED_TYPES and heads.value_dim % block:
            what = f"{heads.value} for keys of {heads.key} in a {self.context.k_type} cache"
            raise self.properties.hparams.unsupported("attention.value_length", what)

    def _rope_queries(
        self, layer: LayerAttention, q: Buffer, y: Buffer, table: RopeTable, rows: Region, *, barrier: bool
    ) -> None:
        self.graph.op(
            f"{layer.name}rope",
            ROPE,
            q.rows,
            constants={"pairs": table.rope.pairs, "norm": layer.norms.mode},
            barrier=barrier,
            x=q,
            heads=layer.heads.count,
            size=layer.heads.key,
            dim=layer.heads.key_dim,
            n_rot=table.rope.n_rot,
            table=rows,
            weight=layer.norms.q,
            eps=self.properties.eps,
            y=y,
        )

    def _rope_keys(self, layer: LayerAttention, k: Buffer, table: RopeTable) -> tuple[LayerAttention, RopeTable]:
        """Normalize and rotate keys before they are added to the cache, so that there is a point between. Return what
        remains to be done: nothing."""
        heads = layer.heads
        self.graph.op(
            f"{layer.name}rope_keys", ROPE, k.rows, constants={"pairs": table.rope.pairs, "norm": layer.norms.mode},
            x=k, heads=heads.count_kv, size=heads.key, dim=heads.key, n_rot=table.rope.n_rot, table=table.rows,
            weight=layer.norms.k, eps=self.properties.eps, y=k,
        )  # fmt: skip
        self.points.add(f"{layer.name}{KEYS}", k, heads=heads.count_kv)
        return layer._replace(norms=NO_NORMS), self._rope_table(NO_ROPE)

    def _append_compressed(self, layer: LayerAttention, k: Buffer, ring: RingBuffer, cache: LayerCache) -> None:
        """Write the keys of the compressed runs that the tokens of the batch complete."""
        layer = layer._replace(name=f"{layer.name}compressed_", norms=NO_NORMS)
        self._append(layer, k, None, self._rope_table(NO_ROPE), ring, cache, ring.compressed)

    def _append(
        self, layer: LayerAttention, k: Buffer, v: Buffer | None, table: RopeTable, ring: RingBuffer,
        cache: LayerCache, entries: Region | None = None,
    ) -> None:  # fmt: skip
        heads = layer.heads
        self.graph.need_scratch(append_scratch_bytes(heads.key_dim, heads.value_dim))
        self.graph.op(
            f"{layer.name}append",
            APPEND,
            k.rows,
            constants={"pairs": table.rope.pairs, "norm": layer.norms.mode, **cache.types},
            cost=CostModel(token=Cost(cache.nbytes // ring.total_entries)),
            k=k,
            v=v or 0,
            heads=heads.count_kv,
            key_size=heads.key,
            key_dim=heads.key_dim,
            value_size=heads.value if v else 0,
            value_dim=heads.value_dim if v else 0,
            n_rot=table.rope.n_rot,
            table=table.rows,
            block_table=self._block_table(table.rope, ring).rows if cache.anchored else 0,
            bias=layer.k_bias if layer.k_bias is not None and cache.anchored else 0,
            weight=layer.norms.k,
            eps=self.properties.eps,
            entries=entries or ring.entries,
            k_cache=cache.k,
            v_cache=cache.v,
            capacity=ring.total_entries,
        )

    def _attend_op(
        self, layer: LayerAttention, q: Buffer, q_sink: Buffer, ring: RingBuffer, cache: LayerCache
    ) -> Buffer:
        heads, cap = layer.heads, layer.spec.cap
        y = self.graph.buffer(heads.count * heads.value, q.rows)
        n_pages, chunk = ring.capacity // PAGE_SIZE, ring.chunk_pages
        self._reserve_partials(heads, -(-n_pages // chunk))
        # Otherwise, two threads would quantize the same group of 32 values.
        quantized = y.quantized if heads.value % 32 == 0 else 0
        values_in_keys = cache.v.nbytes == 0
        variant: Constants = {
            "values_in_keys": int(values_in_keys), "capped": int(cap > 0),
            "sloped": int(layer.spec.max_alibi_bias > 0), "biased": int(layer.biases is not None),
            "selected": int(layer.spec.selected), **cache.types,
        }  # fmt: skip
        rows, large_rows = (tile_rows(heads.group, large_batch) for large_batch in (False, True))
        single = rows if self.graph.sequences > 1 else large_rows
        flat, tiled = self.graph.layouts
        self.graph.op(
            f"{layer.name}attention",
            ATTENTION,
            q.rows,
            constants=(
                {**variant, **flat, "rows": rows, "single": rows},
                {**variant, **tiled, "rows": large_rows, "single": single},
            ),
            chunks=(4, 32),
            cost=CostModel(
                position_bytes=cache.nbytes // ring.total_entries,
                position_fmas=heads.count * (heads.key + heads.value),
                window=ring.visible.window + ring.sinks,
            ),
            q=q,
            q_sink=q_sink,
            k_cache=cache.k,
            v_cache=cache.k if values_in_keys else cache.v,
            capacity=ring.total_entries,
            entry_positions=ring.positions,
            query_positions=ring.query_positions,
            oldest=self.encoder_begin if layer.of_encoder else ring.oldest,
            newest=self.encoder_last if layer.of_encoder else ring.newest,
            segments=ring.segments,
            sink_pages=ring.sink_entries // PAGE_SIZE,
            compressed_page=ring.compressed_page,
            group=heads.group,
            kv_heads=heads.count_kv,
            key_size=heads.key,
            key_dim=heads.key_dim,
            value_size=heads.value,
            value_dim=heads.value_dim,
            scale=layer.scale,
            cap=cap * LOG2_E,
            attn_sinks=layer.sink_scores or 0,
            slopes=layer.alibi_slopes,
            biases=layer.biases or 0,
            chosen=self.chosen if layer.spec.selected else 0,
            choices=self.choices,
            words=n_pages,
            chunk=chunk,
            partial=self._partial,
            y=y,
            q_out=quantized,
            stop=self.graph.stop,
        )
        self._combine_op(layer, ring, cache, y, quantized)
        return y

    def _combine_op(
        self,
        layer: LayerAttention,
        ring: RingBuffer,
        cache: LayerCache,
        y: Buffer,
        quantized: ConvertedActivations | int,
    ) -> None:
        """Record the merging of partial states."""
        heads, (flat, tiled), v_type = layer.heads, self.graph.layouts, cache.types["v_type"]
        self.graph.op(
            f"{layer.name}combine",
            COMBINE,
            y.rows,
            constants=(
                {**flat, "v_type": v_type, "min_rows": 1},
                {**tiled, "v_type": v_type, "min_rows": tile_rows(1, large_batch=True)},
            ),
            chunks=(1, 1),
            segments=ring.segments,
            group=heads.group,
            kv_heads=heads.count_kv,
            tile_rows=tile_rows(heads.group, large_batch=False),
            separate_tokens=int(self.graph.sequences > 1),
            value_size=heads.value,
            value_dim=heads.value_dim,
            entry_dim=heads.value_dim if cache.v.nbytes else heads.key_dim,
            attn_sinks=layer.sink_scores or 0,
            chunk=ring.chunk_pages,
            partial=self._partial,
            y=y,
            q_out=quantized,
        )

    def _reserve_partials(self, heads: AttentionHeads, chunks: int) -> None:
        """Reserve memory for partial results of a few query tiles over `chunks` cache chunks, and scratch."""
        for rows, tokens in (
            (tile_rows(heads.group, False), MAX_SMALL_BATCH),
            (tile_rows(heads.group, True), self.graph.batch),
        ):
            # The maximum is reached if each token belongs to another sequence.
            max_tiles = min(tokens, self.graph.batch) * -(-heads.group // rows) * heads.count_kv
            tiles = min(MIN_TILES_UNSPLIT - 1, max_tiles)
            self._partial.nbytes = max(self._partial.nbytes, tiles * chunks * rows * row_state_bytes(heads.value_dim))
        self.graph.need_scratch(attention_scratch_bytes(heads.group, heads.key_dim, heads.value_dim))

    # --- memory that layers share ---

    def _ring(self, layer: LayerAttention, *, anchored: bool) -> RingBuffer:
        """Return the ring buffer of all layers with this window and kind of attention.

        If pages of keys are `anchored`, a page is reused only after all of its positions have left the window.
        """
        return self.ring_of(layer.spec, layer.n_masked, anchored=anchored)

    def ring_of(self, spec: AttentionSpec, n_masked: int = 0, *, anchored: bool = False) -> RingBuffer:
        """Return the ring buffer of a kind of attention, as `_ring` does."""
        key = (
            spec.window, spec.chunked, anchored, n_masked, spec.causal_media, spec.compression, spec.only_runs,
        )  # fmt: skip
        if key not in self.rings:
            self.rings[key] = create_ring(self.graph, self.context, spec, n_masked, anchored=anchored)
        return self.rings[key]

    def _block_table(self, rope: Rope, ring: RingBuffer) -> BlockTable:
        """Return the mean rotation angles of a ring buffer's pages."""
        key = rope, ring.sinks
        if key not in self.block_tables:
            self.block_tables[key] = BlockTable(rope, ring.sinks, self.graph.region(4 * rope.n_rot * self.graph.batch))
        return self.block_tables[key]

    def _rope_table(self, rope: Rope, *, with_temperature: bool = False) -> RopeTable:
        """Return the rotation angles of all layers with this rotary embedding: those of keys, or, with the
        attention temperature, those of queries."""
        key = rope, with_temperature and rope.temperature is not None
        if key not in self.rope_tables:
            nbytes = 4 * rope.n_rot * self.graph.batch
            sinks = self.graph.region(nbytes) if self.context.context_shift else None
            self.rope_tables[key] = RopeTable(
                rope, Angles(rope, with_temperature=with_temperature), self.graph.region(nbytes), sinks
            )
        return self.rope_tables[key]
