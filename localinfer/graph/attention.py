"""The attention ops, and the memory that layers share: ring buffers, RoPE tables and partial results."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from localinfer.gguf.reader import Tensor
from localinfer.graph.buffers import Buffer, Region
from localinfer.graph.cache.ring_buffer import MIN_PACKED_ENTRIES, LayerCache, RingBuffer
from localinfer.graph.compute_graph import MAX_SMALL_BATCH, ComputeGraph
from localinfer.graph.cost import Cost, CostModel
from localinfer.graph.heads import Heads
from localinfer.graph.rope import NO_ROPE, Angles, BlockTable, Rope, RopeTable
from localinfer.kernels.layout import (
    ANCHORED_TYPES,
    MIN_TILES_UNSPLIT,
    PAGE_SIZE,
    UNLIMITED_WINDOW,
    append_scratch_bytes,
    attention_scratch_bytes,
    row_state_bytes,
    tile_rows,
)
from localinfer.kernels.signatures import APPEND, ATTENTION, COMBINE, ROPE
from quant.jit.kernel import Constants

LOG2_E = 1.4426950408889634  # the kernels compute 2^score


@dataclass(frozen=True)
class Context:
    """The context length, context shift and cache types, and whether attention is causal: see
    `localinfer.graph.cache.ring_buffer`."""

    n_ctx: int
    sinks: int = 0
    context_shift: bool = False  # overwrite the oldest positions when the context is full
    k_type: str = "f16"
    v_type: str = "f16"
    causal: bool = True
    draft_head: bool = False  # build the MTP head, too


@dataclass(frozen=True)
class HeadNorms:
    """The RMSNorm of the heads of queries and keys: "before_rope", "after_rope", "unweighted" (after RoPE) or "none",
    and its weights."""

    mode: str
    q: Tensor | int = 0
    k: Tensor | int = 0


NO_NORMS = HeadNorms("none")


class Attention:
    """Adds the attention of all layers to the graph."""

    def __init__(self, graph: ComputeGraph, context: Context, eps: float) -> None:
        self.graph, self.context, self.eps = graph, context, eps
        self.positions = graph.region(4 * graph.batch)
        self.rope_tables: dict[tuple[Rope, bool], RopeTable] = {}
        self.block_tables: dict[tuple[Rope, int], BlockTable] = {}
        self.rings: dict[tuple[int, bool, bool, int], RingBuffer] = {}
        self.caches: dict[str, LayerCache] = {}
        self._partial = graph.region(0)

    def attend(
        self,
        blk: str,
        q: Buffer,
        k: Buffer | None,
        v: Buffer | None,
        heads: Heads,
        *,
        kv_source: str | None,
        rope: Rope | None,
        norms: HeadNorms,
        window: int,
        chunked: bool,
        scale: float,
        cap: float,
        attn_sinks: Tensor | None,
        k_bias: Tensor | None,
        n_masked: int = 0,
    ) -> Buffer:
        """Write keys and values to the cache and attend to them, or to those of the layer `kv_source`; return float32
        [token][head][value].

        Without v, the values are the last dimensions of the keys. `k_bias` is the bias that all keys contain, if any,
        before RoPE. No token attends to the first `n_masked` positions.
        """
        table, query_table = self._rope_table(rope or NO_ROPE), self._rope_table(rope or NO_ROPE, with_temperature=True)
        if kv_source is None:
            anchored = k_bias is not None and self.context.k_type in ANCHORED_TYPES
            ring = self._ring(window, chunked=chunked, anchored=anchored, n_masked=n_masked)
            self.caches[blk] = ring.add_layer(
                self.graph, heads, self.context.k_type, self.context.v_type, values=v is not None
            )
        cache = self.caches[kv_source or blk]
        ring = self._ring(window, chunked=chunked, anchored=cache.anchored, n_masked=n_masked)
        q_sink = q
        if query_table.sinks and ring.sinks:
            q_sink = self.graph.buffer(heads.count * heads.key_dim)
            self._rope(blk, q, q_sink, heads, query_table, query_table.sinks, norms, barrier=True)
        rotated = q if heads.key == heads.key_dim else self.graph.buffer(heads.count * heads.key_dim)
        if rotated is not q or table.rope.n_rot or norms.q:
            self._rope(
                blk, q, rotated, heads, query_table, query_table.rows, norms, barrier=rotated is not q or k is None
            )
        if k is not None:
            self._append(blk, k, v, heads, table, norms, k_bias, ring, cache)
        q_sink = q_sink if q_sink is not q else rotated
        return self._attend_op(blk, rotated, q_sink, heads, ring, cache, scale, cap, attn_sinks)

    def _rope(
        self, blk: str, q: Buffer, y: Buffer, heads: Heads, table: RopeTable, rows: Region, norms: HeadNorms, *,
        barrier: bool,
    ) -> None:  # fmt: skip
        self.graph.op(
            f"{blk}rope",
            ROPE,
            q.rows,
            constants={"pairs": table.rope.pairs, "norm": norms.mode},
            barrier=barrier,
            x=q,
            heads=heads.count,
            size=heads.key,
            dim=heads.key_dim,
            n_rot=table.rope.n_rot,
            table=rows,
            weight=norms.q,
            eps=self.eps,
            y=y,
        )

    def _append(
        self, blk: str, k: Buffer, v: Buffer | None, heads: Heads, table: RopeTable, norms: HeadNorms,
        k_bias: Tensor | None, ring: RingBuffer, cache: LayerCache,
    ) -> None:  # fmt: skip
        self.graph.need_scratch(append_scratch_bytes(heads.key_dim, heads.value_dim))
        self.graph.op(
            f"{blk}append",
            APPEND,
            k.rows,
            constants={
                "pairs": table.rope.pairs,
                "norm": norms.mode,
                **cache.types,
                "key_size": heads.key,
                "key_dim": heads.key_dim,
                "value_size": heads.value if v else 0,
                "value_dim": heads.value_dim if v else 0,
            },
            cost=CostModel(token=Cost(cache.nbytes // ring.total_entries)),
            k=k,
            v=v or 0,
            heads=heads.count_kv,
            n_rot=table.rope.n_rot,
            table=table.rows,
            block_table=self._block_table(table.rope, ring).rows if cache.anchored else 0,
            bias=k_bias if k_bias is not None and cache.anchored else 0,
            weight=norms.k,
            eps=self.eps,
            entries=ring.entries,
            k_cache=cache.k,
            v_cache=cache.v,
            capacity=ring.total_entries,
        )

    def _attend_op(
        self, blk: str, q: Buffer, q_sink: Buffer, heads: Heads, ring: RingBuffer, cache: LayerCache, scale: float,
        cap: float, attn_sinks: Tensor | None,
    ) -> Buffer:  # fmt: skip
        y, n_pages, chunk = self.graph.buffer(heads.count * heads.value), ring.capacity // PAGE_SIZE, ring.chunk_pages
        self._reserve_partials(heads, -(-n_pages // chunk))
        # Otherwise, two threads would quantize the same group of 32 values.
        quantized = y.quantized if heads.value % 32 == 0 else 0
        has_values = cache.v.nbytes > 0
        small, large = self._attend_constants(
            heads, cache.types["v_type"], heads.value_dim if has_values else heads.key_dim
        )
        keys: Constants = {"key_dim": heads.key_dim, "key_size": heads.key, "k_type": cache.types["k_type"]}
        visible: Constants = {**keys, "capped": int(cap > 0)}
        self.graph.op(
            f"{blk}attention",
            ATTENTION,
            q.rows,
            constants=({**small, **visible}, {**large, **visible}),
            chunks=(4, 16),
            cost=CostModel(
                position_bytes=cache.nbytes // ring.total_entries,
                position_fmas=heads.count * (heads.key + heads.value),
                window=ring.window + ring.sinks,
            ),
            q=q,
            q_sink=q_sink,
            k_cache=cache.k,
            v_cache=cache.v if has_values else cache.k,
            capacity=ring.total_entries,
            entry_positions=ring.positions,
            oldest=ring.oldest,
            newest=ring.newest,
            segments=ring.segments,
            sink_pages=ring.sink_entries // PAGE_SIZE,
            kv_heads=heads.count_kv,
            scale=scale,
            cap=cap * LOG2_E,
            attn_sinks=attn_sinks or 0,
            chunk=chunk,
            partial=self._partial,
            y=y,
            q_out=quantized,
            stop=self.graph.stop,
        )
        self.graph.op(
            f"{blk}combine",
            COMBINE,
            q.rows,
            constants=(small, large),
            chunks=(1, 1),
            segments=ring.segments,
            kv_heads=heads.count_kv,
            attn_sinks=attn_sinks or 0,
            chunk=chunk,
            partial=self._partial,
            y=y,
            q_out=quantized,
        )
        return y

    def _reserve_partials(self, heads: Heads, chunks: int) -> None:
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

    def _attend_constants(self, heads: Heads, v_type: str, value_entry_dim: int) -> tuple[Constants, Constants]:
        """Return the constants of the kernels for small and for large batches."""
        shape: Mapping[str, int | str] = {
            "group": heads.group,
            "value_dim": heads.value_dim,
            "value_size": heads.value,
            "value_entry_dim": value_entry_dim,
            "v_type": v_type,
        }
        flat, tiled = self.graph.layouts
        small, large = tile_rows(heads.group, large_batch=False), tile_rows(heads.group, large_batch=True)
        single = small if self.graph.sequences > 1 else large
        return {**shape, **flat, "rows": small, "single": small}, {**shape, **tiled, "rows": large, "single": single}

    # --- memory that layers share ---

    def _ring(self, window: int, *, chunked: bool, anchored: bool, n_masked: int) -> RingBuffer:
        """Return the ring buffer of all layers with this window (0: the whole context) and kind of attention.

        If pages of keys are `anchored`, a page is reused only after all of its positions have left the window.
        """
        key = window, chunked, anchored, n_masked
        if key not in self.rings:
            context, graph, batch = self.context, self.graph, self.graph.batch
            extra = batch + (PAGE_SIZE if anchored else 0)  # entries besides those that a token attends to
            slides = window and window + (0 if context.context_shift else batch) < context.n_ctx
            create = partial(
                RingBuffer.create, graph, anchored, attention_chunk=window if chunked else 0, n_masked=n_masked
            )
            if slides:
                ring = create(window=window, span=window + extra, n_ctx=context.n_ctx)
            elif context.context_shift:
                span = context.n_ctx - context.sinks
                ring = create(window=span, span=span + extra, sinks=context.sinks, n_ctx=context.n_ctx)
            else:
                visible, span = (
                    window or UNLIMITED_WINDOW,
                    max(context.n_ctx, 0 if context.causal else MIN_PACKED_ENTRIES),
                )
                ring = create(window=visible, span=span, causal=context.causal)
            self.rings[key] = ring
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
