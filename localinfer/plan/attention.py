"""The ops of attention, and what its layers share: rings of cells, tables of angles, room for partial results."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from localinfer.files.gguf import Tensor
from localinfer.ops.calls import APPEND, ATTENTION, COMBINE, ROPE
from localinfer.ops.layout import (
    ANCHORED,
    BLOCK,
    EVERYTHING,
    PLENTY,
    append_scratch_bytes,
    attention_scratch_bytes,
    row_bytes,
    tile_rows,
)
from localinfer.plan.buffers import Buffer, Region
from localinfer.plan.heads import Heads
from localinfer.plan.memory.ring import PACKED, LayerCache, Ring
from localinfer.plan.plan import FEW, Plan
from localinfer.plan.rope import NO_ROPE, Angles, BlockTable, Rope, RopeTable
from localinfer.plan.work import Amount, Work
from quant.jit.kernel import Constants

LOG2_E = 1.4426950408889634  # scores are in powers of two


@dataclass(frozen=True)
class Context:
    """How much of the past is kept, and whether tokens look back only: see `localinfer.plan.memory.ring`."""

    n_ctx: int
    sinks: int = 0
    wraps: bool = False  # overwrite the oldest instead of stopping
    k_type: str = "f16"
    v_type: str = "f16"
    causal: bool = True
    ahead: bool = False  # a head that predicts further tokens takes in what is computed


@dataclass(frozen=True)
class HeadNorms:
    """Weights that the heads of queries and keys are normalised with: "before" they turn, or "after" it; or "to_one"
    after it, without any."""

    when: str
    q: Tensor | int = 0
    k: Tensor | int = 0


NO_NORMS = HeadNorms("no")


class Attention:
    """Records how tokens look back, for all layers of a model."""

    def __init__(self, plan: Plan, context: Context, eps: float) -> None:
        self.plan, self.context, self.eps = plan, context, eps
        self.positions = plan.region(4 * plan.batch)
        self.tables: dict[tuple[Rope, bool], RopeTable] = {}
        self.block_tables: dict[tuple[Rope, int], BlockTable] = {}
        self.rings: dict[tuple[int, bool, bool, int], Ring] = {}
        self.caches: dict[str, LayerCache] = {}
        self._partial = plan.region(0)

    def attend(
        self,
        blk: str,
        q: Buffer,
        k: Buffer | None,
        v: Buffer | None,
        heads: Heads,
        *,
        of: str | None,
        rope: Rope | None,
        norms: HeadNorms,
        window: int,
        stretches: bool,
        scale: float,
        cap: float,
        attn_sinks: Tensor | None,
        k_bias: Tensor | None,
        unseen: int = 0,
    ) -> Buffer:
        """Put keys and values into the cache, and have queries look at it, or at that of another block; float32
        [token][head][value]. Without values, these are the last ones of the keys. `k_bias` is what every key has been
        added, if it has, before it turns. Nobody sees
        the first `unseen` positions."""
        table, own = self._table(rope or NO_ROPE), self._table(rope or NO_ROPE, grow=True)
        if of is None:
            anchored = k_bias is not None and self.context.k_type in ANCHORED
            ring = self._ring(window, stretches=stretches, anchored=anchored, unseen=unseen)
            self.caches[blk] = ring.layer(
                self.plan, heads, self.context.k_type, self.context.v_type, values=v is not None
            )
        cache = self.caches[of or blk]
        ring = self._ring(window, stretches=stretches, anchored=cache.anchored, unseen=unseen)
        q_sink = q
        if own.sinks and ring.sinks:
            q_sink = self.plan.buffer(heads.count * heads.key_dim)
            self._rope(blk, q, q_sink, heads, own, own.sinks, norms, meet=True)
        wide = q if heads.key == heads.key_dim else self.plan.buffer(heads.count * heads.key_dim)
        if wide is not q or table.rope.n_rot or norms.q:
            self._rope(blk, q, wide, heads, own, own.rows, norms, meet=wide is not q or k is None)
        if k is not None:
            self._append(blk, k, v, heads, table, norms, k_bias, ring, cache)
        q_sink = q_sink if q_sink is not q else wide
        return self._look(blk, wide, q_sink, heads, ring, cache, scale, cap, attn_sinks)

    def _rope(
        self, blk: str, q: Buffer, y: Buffer, heads: Heads, table: RopeTable, rows: Region, norms: HeadNorms, *,
        meet: bool,
    ) -> None:  # fmt: skip
        self.plan.op(
            f"{blk}rope",
            ROPE,
            q.rows,
            constants={"pairs": table.rope.pairs, "norm": norms.when},
            meet=meet,
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
        k_bias: Tensor | None, ring: Ring, cache: LayerCache,
    ) -> None:  # fmt: skip
        self.plan.need_scratch(append_scratch_bytes(heads.key_dim, heads.value_dim))
        self.plan.op(
            f"{blk}append",
            APPEND,
            k.rows,
            constants={
                "pairs": table.rope.pairs, "norm": norms.when, **cache.types,
                "key_size": heads.key, "key_dim": heads.key_dim,
                "value_size": heads.value if v else 0, "value_dim": heads.value_dim if v else 0,
            },
            work=Work(token=Amount(cache.nbytes // ring.cells_in_all)),
            k=k,
            v=v or 0,
            heads=heads.count_kv,
            n_rot=table.rope.n_rot,
            table=table.rows,
            block_table=self._block_table(table.rope, ring).rows if cache.anchored else 0,
            bias=k_bias if k_bias is not None and cache.anchored else 0,
            weight=norms.k,
            eps=self.eps,
            cells=ring.cells,
            k_cache=cache.k,
            v_cache=cache.v,
            capacity=ring.cells_in_all,
        )

    def _look(
        self, blk: str, q: Buffer, q_sink: Buffer, heads: Heads, ring: Ring, cache: LayerCache, scale: float,
        cap: float, attn_sinks: Tensor | None,
    ) -> Buffer:  # fmt: skip
        y, blocks, chunk = self.plan.buffer(heads.count * heads.value), ring.capacity // BLOCK, ring.chunk
        self._reserve(heads, -(-blocks // chunk))
        quantized = y.quantized if heads.value % 32 == 0 else 0  # groups of 32 that no two threads share
        apart = cache.v.nbytes > 0
        few, many = self._looks(heads, cache.types["v_type"], heads.value_dim if apart else heads.key_dim)
        keys: Constants = {"key_dim": heads.key_dim, "key_size": heads.key, "k_type": cache.types["k_type"]}
        seen: Constants = {**keys, "capped": int(cap > 0)}
        self.plan.op(
            f"{blk}attention",
            ATTENTION,
            q.rows,
            constants=({**few, **seen}, {**many, **seen}),
            rounds=(4, 16),
            work=Work(
                cell_bytes=cache.nbytes // ring.cells_in_all,
                cell_fmas=heads.count * (heads.key + heads.value),
                window=ring.window + ring.sinks,
            ),
            q=q,
            q_sink=q_sink,
            k_cache=cache.k,
            v_cache=cache.v if apart else cache.k,
            capacity=ring.cells_in_all,
            cell_positions=ring.positions,
            oldest=ring.oldest,
            newest=ring.newest,
            segments=ring.segments,
            sink_blocks=ring.sink_cells // BLOCK,
            kv_heads=heads.count_kv,
            scale=scale,
            cap=cap * LOG2_E,
            attn_sinks=attn_sinks or 0,
            chunk=chunk,
            partial=self._partial,
            y=y,
            q_out=quantized,
            stop=self.plan.stop,
        )
        self.plan.op(
            f"{blk}combine",
            COMBINE,
            q.rows,
            constants=(few, many),
            rounds=(1, 1),
            segments=ring.segments,
            kv_heads=heads.count_kv,
            attn_sinks=attn_sinks or 0,
            chunk=chunk,
            partial=self._partial,
            y=y,
            q_out=quantized,
        )
        return y

    def _reserve(self, heads: Heads, chunks: int) -> None:
        """Room for the partial states of few tiles over so many chunks of cells, and for what a thread needs."""
        for rows, tokens in ((tile_rows(heads.group, False), FEW), (tile_rows(heads.group, True), self.plan.batch)):
            most = min(tokens, self.plan.batch) * -(-heads.group // rows) * heads.count_kv  # each of another sequence
            tiles = min(PLENTY - 1, most)
            self._partial.nbytes = max(self._partial.nbytes, tiles * chunks * rows * row_bytes(heads.value_dim))
        self.plan.need_scratch(attention_scratch_bytes(heads.group, heads.key_dim, heads.value_dim))

    def _looks(self, heads: Heads, v_type: str, value_cell: int) -> tuple[Constants, Constants]:
        """What is compiled into the kernels for few tokens and for many."""
        shape: Mapping[str, int | str] = {
            "group": heads.group,
            "value_dim": heads.value_dim,
            "value_size": heads.value,
            "value_cell": value_cell,
            "v_type": v_type,
        }
        flat, tiled = self.plan.layouts
        few, many = tile_rows(heads.group, many=False), tile_rows(heads.group, many=True)
        single = few if self.plan.sequences > 1 else many
        return {**shape, **flat, "rows": few, "single": few}, {**shape, **tiled, "rows": many, "single": single}

    # --- what layers share ---

    def _ring(self, window: int, *, stretches: bool, anchored: bool, unseen: int) -> Ring:
        """The ring of all layers with this window (0: the whole context), or these stretches of positions, whose blocks
        of keys have anchors or not. If they have, a block is used again when nobody looks at any of its cells."""
        key = window, stretches, anchored, unseen
        if key not in self.rings:
            context, plan, batch = self.context, self.plan, self.plan.batch
            around = batch + (BLOCK if anchored else 0)  # cells beside those that a token looks at
            slides = window and window + (0 if context.wraps else batch) < context.n_ctx
            reserve = partial(Ring.reserve, plan, anchored, stretch=window if stretches else 0, unseen=unseen)
            if slides:
                ring = reserve(window=window, span=window + around, n_ctx=context.n_ctx)
            elif context.wraps:
                span = context.n_ctx - context.sinks
                ring = reserve(window=span, span=span + around, sinks=context.sinks, n_ctx=context.n_ctx)
            else:
                seen, span = window or EVERYTHING, max(context.n_ctx, 0 if context.causal else PACKED)
                ring = reserve(window=seen, span=span, causal=context.causal)
            self.rings[key] = ring
        return self.rings[key]

    def _block_table(self, rope: Rope, ring: Ring) -> BlockTable:
        """The mean angles of a ring's blocks."""
        key = rope, ring.sinks
        if key not in self.block_tables:
            self.block_tables[key] = BlockTable(rope, ring.sinks, self.plan.region(4 * rope.n_rot * self.plan.batch))
        return self.block_tables[key]

    def _table(self, rope: Rope, *, grow: bool = False) -> RopeTable:
        """The angles of all layers with this rotary embedding: of keys, and of queries if these grow."""
        key = rope, grow and rope.growth is not None
        if key not in self.tables:
            nbytes = 4 * rope.n_rot * self.plan.batch
            sinks = self.plan.region(nbytes) if self.context.wraps else None
            self.tables[key] = RopeTable(rope, Angles(rope, grow=grow), self.plan.region(nbytes), sinks)
        return self.tables[key]
