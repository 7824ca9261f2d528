"""Indexers of sparse attention, composed of a builder's operations: which positions the attention of a layer, and of
later ones, attends to (DeepSeek, 2025)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from localinfer.graph.attention import latent_attention
from localinfer.graph.builder import AttentionSpec, Block, Builder, PerLayer, RunChoice, X
from localinfer.graph.properties.latent_attention import LatentShape

Indexer = Callable[[Block, X, X], None]  # a function of a layer, of its input, and of the input of its queries
KEY_EPS = 1e-6  # of the LayerNorm of keys
MAX_RUN = 1 << 16  # positions


def read_indexer(g: Builder[X], pairs: str, *, key_eps: float = KEY_EPS, at_end: bool = False) -> Indexer[X]:
    """Return the indexer, which chooses the positions that the attention of a layer and of later ones attends to. Its
    rotary embedding rotates the first values of a head, or the last ones if `at_end`."""
    rope, (heads, size, top_k) = g.rope(pairs, amplified=False), index_sizes(g)
    if at_end and rope.n_rot >= size:
        raise g.hparams.error("attention.indexer.key_length", f"is {size}; more than {rope.n_rot} values are needed")

    def rotated_first(x: X, heads: int) -> X:
        """Return heads whose first values are rotated: products do not depend on the order of values."""
        if not at_end:
            return x
        others, rotated = g.per_head.split(x, heads, size - rope.n_rot, rope.n_rot)
        return g.per_head.join(heads, rotated, others)

    def select(blk: Block, h: X, narrow: X) -> None:
        q, k, weights = index_heads(g, blk, h, narrow, (heads, size), key_eps)
        g.select_positions(blk, rotated_first(q, heads), rotated_first(k, 1), weights, AttentionSpec(rope), top_k)

    return select


def read_run_indexer(g: Builder[X]) -> Indexer[X]:
    """Return the indexer, as `read_indexer` does. It has a key for each run of positions, a mean of theirs, and chooses
    whole runs; it always chooses the positions after the last complete run (Z.ai, 2026: GLM-5-Next)."""
    key_eps, (heads, size, _) = g.hparams.positive("attention.layer_norm_epsilon", KEY_EPS), index_sizes(g)
    runs = read_run_choice(g, g.hparams.count("attention.indexer.kpool", minimum=2, maximum=MAX_RUN))
    if not g.hparams.flag("attention.indexer.kpool_select_tail", True):
        raise g.hparams.unsupported("attention.indexer.kpool_select_tail", "false")

    def select(blk: Block, h: X, narrow: X) -> None:
        q, k, weights = index_heads(g, blk, h, narrow, (heads, size), key_eps)
        scores, name = g.matmul(h, f"{blk}indexer_compressor_gate", size), f"{blk}indexer_compressor"
        g.select_runs(blk, q, g.recurrent.compress(k, scores, name, runs.size, size), weights, None, runs)

    return select


def read_run_choice(g: Builder[X], size: int) -> RunChoice:
    """Return the choice of runs of this size that together have as many positions as the file states."""
    top_k = g.hparams.count("attention.indexer.top_k")
    if top_k % size:
        what = f"is {top_k}; it must be a multiple of {size}, the positions of a run"
        raise g.hparams.error("attention.indexer.top_k", what)
    return RunChoice(size, top_k // size)


def index_sizes(g: Builder[X]) -> Iterator[int]:
    """Yield the number of heads of the indexer, their size, and how many positions it chooses."""
    return (g.hparams.count(f"attention.indexer.{key}") for key in ("head_count", "key_length", "top_k"))


def index_heads(
    g: Builder[X], blk: Block, h: X, narrow: X, shape: tuple[int, int], key_eps: float
) -> tuple[X, X, X]:
    """Return the queries of the indexer's heads, whose number and size are `shape`, the key, and the heads' weights."""
    heads, size = shape
    k = g.norm(g.matmul(h, f"{blk}indexer.attn_k", size), f"{blk}indexer.k_norm", layer_norm_eps=key_eps)
    return g.matmul(narrow, f"{blk}indexer.attn_q_b", heads * size), k, g.matmul(h, f"{blk}indexer.proj", heads)


def read_indexer_layers(g: Builder[X], usual: Callable[[int], bool], *, mtp: bool = True) -> PerLayer[bool]:
    """Return which layers have an indexer: as the file states, or `usual(layer)`. The others attend to the positions
    that an earlier layer chose. MTP layers have one if `mtp`, and if the file has its tensors."""
    has_indexer = g.hparams.flags("attention.indexer.types", g.block_count, usual)
    first = next((number for number, heads in enumerate(g.attention_heads) if heads.count_kv), 0)
    if not has_indexer[first]:
        what = f"is false for layer {first}, which has no layer with attention before it"
        raise g.hparams.error("attention.indexer.types", what)
    return PerLayer(has_indexer, mtp and g.tensors.has(f"blk.{g.block_count}.indexer.proj.weight"))


def sparse_attention(
    g: Builder[X], h: X, blk: Block, shape: LatentShape, spec: AttentionSpec, select: Indexer[X],
    has_indexer: PerLayer[bool],
) -> X:  # fmt: skip
    """Return the output of latent attention to the positions that the indexer of this layer chooses, or else that of
    the last layer before it with an indexer. MTP layers without an indexer attend to all positions."""
    selects = partial(select, blk, h) if has_indexer[blk] else None
    return latent_attention(g, h, blk, shape, replace(spec, selected=has_indexer[blk] or not blk.is_mtp), selects)
