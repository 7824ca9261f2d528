"""Compressed attention (DeepSeek-V4, 2026), composed of a builder's operations.

A layer attends to a sliding window, and to compressed keys, each of which represents a run of adjacent positions of the
context. If runs overlap, an indexer with compressed keys of its own may choose some of them. All heads share one key,
which is also the value. Its last dimensions are rotated, and those of the output are rotated back.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.attention import narrow_queries, sliding_window
from localinfer.graph.builder import AttentionSpec, Block, Builder, PerLayer, Rope, RunChoice, X
from localinfer.graph.indexer import MAX_RUN, read_run_choice
from localinfer.graph.properties.attention import VALUE_GROUP
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.rope import BASE, plain_frequencies, read_n_rot

RATIOS, COMPRESSED_BASE = "attention.compress_ratios", "attention.compress_rope_freq_base"
MAX_AVERAGED_RUN = 1 << 10  # positions whose keys have a mean


class Rotations(NamedTuple):
    """The rotary embedding of heads, its inverse, and that of the keys of runs, which are at their first position."""

    rope: Rope
    inverse: Rope
    of_runs: Rope


class Indexer(NamedTuple):
    """The indexer: the number and size of its heads, and how many runs it chooses."""

    heads: int
    size: int
    top_k: int


@dataclass(frozen=True, eq=False)
class CompressedAttention:
    """The attention of a model. `runs` are the positions of a run in each layer; 0: it only has a window. The output
    has a matrix of `rank` rows for each of several `groups` of heads, and one of all groups."""

    runs: PerLayer[int]
    window: int
    rotations: PerLayer[Rotations]
    groups: int
    rank: int
    indexer: Indexer
    indexer_rotations: PerLayer[Rotations]


def read_compressed_attention(g: Builder[X]) -> CompressedAttention:
    """Return the attention that the metadata describes. Layers without runs have a rotary embedding of their own,
    without context extension. The MTP layer has no runs."""
    hparams, heads = g.hparams, g.attention_heads[0]
    size = heads.key
    sizes = (hparams.count(f"attention.indexer.{key}", 1) for key in ("head_count", "key_length", "top_k"))
    runs, indexer = PerLayer(read_runs(hparams, g.block_count), mtp=0), Indexer(*sizes)
    plain = plain_frequencies(hparams.positive("rope.freq_base", BASE), read_n_rot(hparams, size))
    slow = g.rope("interleaved", base=COMPRESSED_BASE).frequencies if any(runs.values) else plain

    def rotations_of(head_size: int) -> PerLayer[Rotations]:
        if head_size < 2 * len(plain):
            raise hparams.error("rope.dimension_count", f"is {2 * len(plain)}; heads have {head_size} values")
        still = np.zeros(head_size // 2 - len(plain))
        found = {run: rotations(np.concatenate([still, slow if run else plain]), run) for run in {*runs.values, 0}}
        return runs.map(lambda run: found[run])

    groups, rank = (hparams.count(f"attention.output_{key}") for key in ("group_count", "lora_rank"))
    if heads.value != size:
        raise hparams.error("attention.value_length", f"is {heads.value}, not {size}: keys are values")
    if heads.count % groups or heads.count // groups * size % VALUE_GROUP:
        raise hparams.unsupported("attention.output_group_count", groups)
    if groups * rank % VALUE_GROUP:
        raise hparams.unsupported("attention.output_lora_rank", rank)
    window, of_indexer = sliding_window(g), rotations_of(max(indexer.size, 2 * len(plain)))
    return CompressedAttention(runs, window, rotations_of(size), groups, rank, indexer, of_indexer)


def read_runs(hparams: Hyperparameters, blocks: int) -> list[int]:
    """Return the positions of a run in each layer, 0 if it has none. Files may have entries for MTP layers, too."""
    runs = hparams.f.get(hparams.full_name(RATIOS), np.ndarray)
    if len(runs) < blocks or runs.dtype.kind not in "iu" or runs.min() < 0 or runs.max() > MAX_RUN or 1 in runs:
        raise hparams.error(RATIOS, f"must have 0 or a number from 2 to {MAX_RUN} for each of the {blocks} blocks")
    return [int(run) for run in runs[:blocks]]


def read_run_choices(g: Builder[X]) -> PerLayer[RunChoice | None]:
    """Return the runs of positions that an indexer with averaged keys chooses in each layer; None in layers without an
    indexer."""
    sizes = read_runs(g.hparams, g.block_count)
    if max(sizes) > MAX_AVERAGED_RUN:
        raise g.hparams.unsupported(RATIOS, max(sizes))
    return PerLayer([read_run_choice(g, size) if size else None for size in sizes])


def rotations(frequencies: NDArray[np.float64], run: int) -> Rotations:
    """Return the rotary embeddings of heads with these frequencies, of which some are 0."""
    rope = Rope("interleaved", frequencies)
    return Rotations(rope, replace(rope, frequencies=-frequencies), replace(rope, offset=max(run - 1, 0)))


def compressed_attention(g: Builder[X], h: X, blk: Block, a: CompressedAttention) -> X:
    """Return the output of the attention of a layer."""
    n, size, run, ropes = blk.heads.count, blk.heads.key, a.runs[blk], a.rotations[blk]
    narrow, has_indexer = narrow_queries(g, h, blk), run > 0 and g.tensors.has(f"{blk}indexer.proj.weight")
    q, k = g.norm_groups(g.matmul(narrow, f"{blk}attn_q_b", n * size), size), shared_keys(g, h, blk)
    spec = replace(attention_of(a, blk), selected=has_indexer)
    keys = partial(compressed_keys, g, h, run=run)
    if has_indexer:
        of_indexer, (heads, length, top_k) = a.indexer_rotations[blk], a.indexer
        chosen = keys(name=f"{blk}indexer_compressor", size=length, rope=of_indexer.of_runs)
        queries, weights = g.matmul(narrow, f"{blk}indexer.attn_q_b", heads * length), f"{blk}indexer.proj"
        of_index = replace(spec, rope=of_indexer.rope)
        g.select_positions(blk, queries, chosen, g.matmul(h, weights, heads), of_index, top_k)
    compressed = keys(name=f"{blk}attn_compressor", size=size, rope=ropes.of_runs) if run else None
    y = g.attend(blk, q, k, None, spec, compressed=compressed)
    g.rotate(y, n, ropes.inverse)
    low = g.per_head.matmul(y, f"{blk}attn_output_a", a.groups, a.rank)
    return g.matmul(low, f"{blk}attn_output_b", g.embedding_length)


def shared_keys(g: Builder[X], h: X, blk: Block) -> X:
    """Return the keys of a layer before their rotation; all heads share them."""
    return g.norm(g.matmul(h, f"{blk}attn_kv", blk.heads.key), f"{blk}attn_kv_a_norm")


def attention_of(a: CompressedAttention, blk: Block) -> AttentionSpec:
    """Return the attention of a layer, to all its runs."""
    return AttentionSpec(a.rotations[blk].rope, window=a.window, sinks=True, compression=a.runs[blk])


def compressed_keys(g: Builder[X], h: X, *, run: int, name: str, size: int, rope: Rope) -> X:
    """Return the keys of runs, `size` values each, in the rows of their last positions. Runs overlap if the matrices
    have twice as many rows."""
    n = g.tensors.n_rows(f"{name}_kv")
    if n not in (size, 2 * size):
        raise g.tensors.f.error(f"tensor {name}_kv.weight", f"has {n} rows, not {size} or {2 * size}")
    values, gate = g.matmuls(h, (f"{name}_kv", n), (f"{name}_gate", n))
    y = g.norm(g.recurrent.compress(values, gate, name, run, size), f"{name}_norm")
    g.rotate(y, 1, rope)
    return y
