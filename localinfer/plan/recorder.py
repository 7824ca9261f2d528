"""The stanzas that architectures are written in: each records the ops of one step of a forward pass.

Every tensor is checked here, by name, shape and type, when it is first mentioned; an architecture file only says what
is computed. Knows the file and the plan, no tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import Unsupported
from localinfer.files.gguf import GGUF, StringArray, Tensor
from localinfer.ops.layout import BLOCK, EVERYTHING, PLENTY, attention_scratch_bytes, row_bytes, tile_rows
from localinfer.plan.cache import Angles, LayerCache, Ring
from localinfer.plan.config import ROPE_FACTORS, Config, Rope, frequencies
from localinfer.plan.plan import Argument, Buffer, Plan, Region
from localinfer.plan.work import Amount, Work
from quant import FORMATS
from quant.ggml import TYPES
from quant.jit.kernel import Constants

OPS = "localinfer.ops"
CHUNKS = 64  # at most so many chunks of cells are shared among threads when a token attends


@dataclass(eq=False)
class RopeTable:
    """The angles of a batch: filled in before each run. `sinks` are those under which queries look at sinks."""

    rope: Rope
    angles: Angles
    rows: Region
    sinks: Region | None

    def fill(self, first: int, count: int, n_ctx: int) -> None:
        """For positions first .. first + count - 1; sinks are looked at from no further than n_ctx."""
        size = count * self.rope.n_rot
        if count == 1:
            self.rows.view(np.float32)[:size] = self.angles.one(first)
        else:
            self.rows.view(np.float32)[:size] = self.angles.at(np.arange(first, first + count)).ravel()
        if self.sinks:
            near = np.minimum(np.arange(first, first + count), n_ctx - 1)
            self.sinks.view(np.float32)[:size] = self.angles.at(near).ravel()


@dataclass(frozen=True)
class Context:
    """How much of the past is kept: see `localinfer.plan.cache`."""

    n_ctx: int
    sinks: int = 0
    turning: bool = False  # overwrite the oldest instead of stopping
    k_type: str = "f16"
    v_type: str = "f16"


class Recorder:
    """Records one model's forward pass into a plan."""

    def __init__(self, f: GGUF, config: Config, plan: Plan, context: Context) -> None:
        self.f, self.config, self.plan, self.context = f, config, plan, context
        self.ids, self.positions = plan.region(4 * plan.batch), plan.region(4 * plan.batch)
        self.picked_rows = plan.region(4 * plan.outputs)
        self.tables: dict[Rope, RopeTable] = {}
        self.rings: dict[int, Ring] = {}
        self.layers: list[LayerCache] = []
        self.used: set[str] = set()
        self.partial = plan.region(0)
        self.block_starts: list[int] = []  # the number of the first op of each block
        self.head_start = 0
        self.residual: Buffer | None = None
        self.logits_buffer: Buffer | None = None

    # --- tensors ---

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor of that name, which must have this shape and a type that can be computed with.

        Raises LocalInferError naming the tensor, Unsupported for a type that has no kernels.
        """
        if name not in self.f.tensors:
            raise self.f.error(f"tensor {name}", "is missing")
        found = self.f.tensors[name]
        if found.shape != shape:
            raise self.f.error(f"tensor {name}", f"has shape {list(found.shape)}, not {list(shape)}")
        if found.type not in FORMATS:
            known = ", ".join(TYPES[number].name for number in FORMATS)
            what = f"type {found.type_name} is not supported (only {known})"
            raise self.f.error(f"tensor {name}", f"{what}; `localinfer inspect` lists all types", Unsupported)
        self.used.add(name)
        return found

    def vector(self, name: str, n: int) -> Tensor:
        """A tensor of n float32 numbers."""
        found = self.tensor(name, n)
        if found.type_name != "F32":
            raise self.f.error(f"tensor {name}", f"has type {found.type_name}; it must be F32")
        return found

    def refuse_unused(self) -> None:
        """A tensor that this forward pass ignores would be a model that is not the one in the file."""
        unused = sorted(set(self.f.tensors) - self.used)
        if unused:
            what = f"is not part of the {self.config.architecture} architecture as it is supported"
            raise self.f.error(f"tensor {unused[0]}", what, Unsupported)

    # --- stanzas ---

    def blocks(self) -> Iterator[tuple[int, str]]:
        """The number and the name prefix of each block; what a block computed in is used again by the next."""
        for number in range(self.config.block_count):
            self.block_starts.append(len(self.plan.ops))
            with self.plan.recycling():
                yield number, f"blk.{number}."

    def embed(self, name: str, factor: float = 1.0) -> Buffer:
        """The residual stream: a row of the embedding for each token, times a factor."""
        n, vocabulary = self.config.embedding_length, self.n_vocab(name)
        weight = self.tensor(name, vocabulary, n)
        fmt, x = FORMATS[weight.type], self.plan.buffer(n)
        arguments: dict[str, Argument] = {
            "tokens": self.plan.tokens,
            "ids": self.ids,
            "w": weight,
            "row_bytes": weight.nbytes // vocabulary,
            "n": n,
            "y": x,
            "factor": float(np.float32(factor)),
        }
        work = Work(token=Amount(weight.nbytes // vocabulary))
        self.plan.op(name, fmt.get_rows, x.rows, arguments, constants={"room": fmt.room}, work=work)
        self.residual = x
        return x

    def n_vocab(self, name: str) -> int:
        """The rows that the embedding must have: one for each token of the vocabulary, where the file has one."""
        tokens = self.f.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, StringArray):
            return len(tokens)
        return self.f.tensors[name].shape[0] if name in self.f.tensors else 0

    def norm(self, x: Buffer, name: str) -> Buffer:
        """norm(x) * weight, into a buffer of its own."""
        y = self.plan.buffer(x.n, x.rows)
        arguments: dict[str, Argument] = {
            "tokens": x.rows,
            "x": x,
            "weight": self.vector(name, x.n),
            "n": x.n,
            "eps": self.config.eps,
            "y": y,
            "q": y.quantized,
        }
        self.plan.op(name, f"{OPS}.norm:rms_norm", x.rows, arguments, constants=self.plan.layouts, rounds=(0, 4))
        return y

    def add_norm(self, x: Buffer, branch: Buffer, name: str) -> None:
        """x += norm(branch) * weight."""
        weight = self.vector(name, x.n)
        arguments: dict[str, Argument] = {
            "tokens": x.rows,
            "x": x,
            "branch": branch,
            "weight": weight,
            "n": x.n,
            "eps": self.config.eps,
        }
        self.plan.op(name, f"{OPS}.norm:add_norm", x.rows, arguments, rounds=(0, 4))

    def matmul(self, x: Buffer, name: str, n_out: int, *, add_to: Buffer | None = None, meet: bool = True) -> Buffer:
        """weight . x, or add_to += weight . x."""
        return self.plan.matmul(x, self.tensor(name, n_out, x.n), add_to=add_to, meet=meet)

    def feed_forward(self, h: Buffer, blk: str, activation: str) -> Buffer:
        """act(gate . h) * (up . h), the input of ffn_down."""
        n = self.config.feed_forward_length
        gate = self.matmul(h, f"{blk}ffn_gate.weight", n, meet=False)
        up = self.matmul(h, f"{blk}ffn_up.weight", n)
        arguments: dict[str, Argument] = {"tokens": gate.rows, "gate": gate, "up": up, "n": n, "q": gate.quantized}
        few, many = self.plan.layouts
        named: Constants = {"activation": activation}
        self.plan.op(
            f"{blk}gated",
            f"{OPS}.gate:gated",
            gate.rows,
            arguments,
            constants=({**few, **named}, {**many, **named}),
            rounds=(1, 4),
        )
        return gate

    def attention(
        self,
        h: Buffer,
        blk: str,
        *,
        pairs: str,
        rope: Rope,
        window: int = 0,
        scale: float | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
    ) -> Buffer:
        """Every token looks back over the ring; the input of attn_output. Scores are scaled by head_dim^-1/2 unless
        `scale` is given.
        """
        c = self.config
        q = self.matmul(h, f"{blk}attn_q.weight", c.head_count * c.head_dim, meet=False)
        k = self.matmul(h, f"{blk}attn_k.weight", c.head_count_kv * c.head_dim, meet=False)
        v = self.matmul(h, f"{blk}attn_v.weight", c.head_count_kv * c.head_dim)
        if qkv_bias:
            self._add_bias(q, f"{blk}attn_q.bias", meet=False)
            self._add_bias(k, f"{blk}attn_k.bias", meet=False)
            self._add_bias(v, f"{blk}attn_v.bias")
        types = self.context.k_type, self.context.v_type
        cache = LayerCache.reserve(self.plan, self.ring(window), c.head_count_kv, c.head_dim, *types)
        self.layers.append(cache)
        table = self.table(rope)
        q_sink = self.plan.buffer(q.n) if table.sinks and cache.ring.sinks else q
        if q_sink is not q and table.sinks:
            self._rope(blk, q, q_sink, table.sinks, rope.n_rot, pairs, qk_norm)
        self._rope(blk, q, q, table.rows, rope.n_rot, pairs, qk_norm)
        self._append(blk, k, v, table, cache, pairs, qk_norm)
        return self._attend(blk, q, q_sink, cache, scale or c.head_dim**-0.5)

    def _add_bias(self, x: Buffer, name: str, *, meet: bool = True) -> None:
        """x += bias."""
        arguments: dict[str, Argument] = {"tokens": x.rows, "x": x, "bias": self.vector(name, x.n), "n": x.n}
        self.plan.op(name, f"{OPS}.bias:add_bias", x.rows, arguments, meet=meet)

    def _rope(self, blk: str, q: Buffer, y: Buffer, table: Region, n_rot: int, pairs: str, qk_norm: bool) -> None:
        c = self.config
        arguments: dict[str, Argument] = {
            "tokens": q.rows,
            "x": q,
            "heads": c.head_count,
            "head_dim": c.head_dim,
            "n_rot": n_rot,
            "table": table,
            "weight": self.vector(f"{blk}attn_q_norm.weight", c.head_dim) if qk_norm else 0,
            "eps": c.eps,
            "y": y,
        }
        constants: Constants = {"pairs": pairs, "norm": int(qk_norm)}
        self.plan.op(f"{blk}rope", f"{OPS}.rope:rope", q.rows, arguments, constants=constants, meet=y is not q)

    def _append(
        self, blk: str, k: Buffer, v: Buffer, table: RopeTable, cache: LayerCache, pairs: str, qk_norm: bool
    ) -> None:
        c = self.config
        arguments: dict[str, Argument] = {
            "tokens": k.rows,
            "k": k,
            "v": v,
            "heads": c.head_count_kv,
            "n_rot": table.rope.n_rot,
            "table": table.rows,
            "weight": self.vector(f"{blk}attn_k_norm.weight", c.head_dim) if qk_norm else 0,
            "eps": c.eps,
            "cells": cache.ring.cells,
            "k_cache": cache.k,
            "v_cache": cache.v,
            "capacity": cache.ring.capacity,
        }
        constants: Constants = {"pairs": pairs, "norm": int(qk_norm), "head_dim": c.head_dim, **cache.types}
        work = Work(token=Amount(cache.cell_bytes))
        self.plan.op(f"{blk}append", f"{OPS}.append:append", k.rows, arguments, constants=constants, work=work)

    def _attend(self, blk: str, q: Buffer, q_sink: Buffer, cache: LayerCache, scale: float) -> Buffer:
        c, ring, y = self.config, cache.ring, self.plan.buffer(q.n)
        blocks = ring.capacity // BLOCK
        chunk = max(4, -(-blocks // CHUNKS))
        few, many = (tile_rows(c.group, many) for many in (False, True))
        tiles = min(PLENTY - 1, -(-self.plan.batch // (many // c.group)) * c.head_count_kv)
        partial = tiles * -(-blocks // chunk) * many * row_bytes(c.head_dim)
        self.partial.nbytes = max(self.partial.nbytes, partial)
        self.plan.need_scratch(attention_scratch_bytes(c.group, c.head_dim))
        arguments: dict[str, Argument] = {
            "tokens": q.rows,
            "q": q,
            "q_sink": q_sink,
            "k_cache": cache.k,
            "v_cache": cache.v,
            "capacity": ring.capacity,
            "cell_positions": ring.positions,
            "positions": self.positions,
            "blocks": ring.blocks,
            "sink_blocks": ring.sink_blocks,
            "window": ring.window,
            "kv_heads": c.head_count_kv,
            "scale": scale,
            "chunk": chunk,
            "partial": self.partial,
            "y": y,
            "q_out": y.quantized,
            "stop": self.plan.stop,
        }
        flat, tiled = self.plan.layouts
        shape: Constants = {"group": c.group, "head_dim": c.head_dim, "v_type": cache.types["v_type"]}
        few_rows: Constants = {**shape, **flat, "rows": few}
        many_rows: Constants = {**shape, **tiled, "rows": many}
        looks = {**few_rows, **cache.types}, {**many_rows, **cache.types}
        fmas = 2 * c.head_count * c.head_dim
        work = Work(cell_bytes=cache.cell_bytes, cell_fmas=fmas, window=ring.window + ring.sinks)
        attention = f"{OPS}.attention:attention"
        self.plan.op(f"{blk}attention", attention, q.rows, arguments, constants=looks, rounds=(4, 16), work=work)
        joined = {name: arguments[name] for name in ("tokens", "blocks", "kv_heads", "chunk", "partial", "y", "q_out")}
        combine = f"{OPS}.attention:combine"
        self.plan.op(f"{blk}combine", combine, q.rows, joined, constants=(few_rows, many_rows), rounds=(1, 1))
        return y

    def logits(self, x: Buffer) -> None:
        """The output layer, for the picked tokens only: the embedding, where it has no matrix of its own."""
        embedding = "token_embd.weight"
        output = "output.weight" if "output.weight" in self.f.tensors else embedding
        self.head_start = len(self.plan.ops)
        picked = self.plan.buffer(x.n, self.plan.picked)
        arguments: dict[str, Argument] = {
            "tokens": picked.rows,
            "x": x,
            "rows": self.picked_rows,
            "n": x.n,
            "y": picked,
        }
        self.plan.op("pick", f"{OPS}.norm:pick", picked.rows, arguments)
        self.logits_buffer = self.matmul(self.norm(picked, "output_norm.weight"), output, self.n_vocab(embedding))

    def block(self, number: int) -> tuple[int, int]:
        """The first op of a block, and the first one behind it."""
        ends = [*self.block_starts[1:], self.head_start]
        return self.block_starts[number], ends[number]

    # --- what layers share ---

    def ring(self, window: int) -> Ring:
        """The ring of all layers with this window (0: the whole context)."""
        if window not in self.rings:
            context, batch = self.context, self.plan.batch
            slides = window and window + (0 if context.turning else batch) < context.n_ctx
            if slides:
                ring = Ring.reserve(self.plan, window=window, span=window + batch)
            elif context.turning:
                span = context.n_ctx - context.sinks
                ring = Ring.reserve(self.plan, window=span, span=span + batch, sinks=context.sinks)
            else:
                ring = Ring.reserve(self.plan, window=window or EVERYTHING, span=context.n_ctx)
            self.rings[window] = ring
        return self.rings[window]

    def table(self, rope: Rope) -> RopeTable:
        """The angles of all layers with this rotary embedding."""
        if rope not in self.tables:
            nbytes = 4 * rope.n_rot * self.plan.batch
            sinks = self.plan.region(nbytes) if self.context.turning else None
            self.tables[rope] = RopeTable(rope, Angles(self._frequencies(rope)), self.plan.region(nbytes), sinks)
        return self.tables[rope]

    def _frequencies(self, rope: Rope) -> NDArray[np.float64]:
        if not rope.has_factors:
            return frequencies(rope)
        factors = self.vector(ROPE_FACTORS, rope.n_rot // 2).data.view(np.float32)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise self.f.error(f"tensor {ROPE_FACTORS}", "has factors that are not positive numbers")
        return frequencies(rope, factors)
