"""The ops of indexers, which choose the positions that sparse attention attends to."""

import numpy as np

from localinfer.graph.cache.ring_buffer import RingBuffer
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.cost import CostModel
from localinfer.graph.properties.attention import AttentionSpec, BlockChoice
from localinfer.graph.properties.tensors import constant_tensor
from localinfer.graph.recording.attention import LayerAttention
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS, RADIX_BYTES, UNLIMITED_WINDOW
from localinfer.kernels.signatures import CHOOSE_BLOCKS, CHOOSE_POSITIONS, CHOOSE_RUNS, SCORE_PANELS, SCORE_POSITIONS


def select_positions(
    model: ModelGraph, layer: LayerAttention, q: Buffer, k: Buffer, weights: Buffer, top_k: int
) -> None:
    """Choose positions for all key heads: see `localinfer.kernels.attention.indexer`."""
    ring, words = score_positions(model, layer, q, k, weights)
    reserve(model, words, 1, 4 * PAGE_SIZE * words)
    model.graph.op(
        f"{layer.name}choose", CHOOSE_POSITIONS, q.rows, chunks=(1, 8), scores=model.attention.index_scores,
        segments=ring.segments, words=words, compressed_page=ring.compressed_page, top_k=top_k,
        chosen=model.attention.chosen,
    )  # fmt: skip


def select_runs(
    model: ModelGraph, layer: LayerAttention, q: Buffer, k: Buffer, weights: Buffer | None, top_k: int
) -> None:
    """Choose the positions of runs for all key heads: see `localinfer.kernels.attention.indexer`."""
    attention = model.attention
    ring, run_words = score_positions(model, layer, q, k, weights)
    words = attention.ring_of(AttentionSpec()).capacity // PAGE_SIZE
    reserve(model, words, 1, 4 * PAGE_SIZE * run_words)
    model.graph.op(
        f"{layer.name}choose", CHOOSE_RUNS, q.rows, chunks=(1, 8), scores=attention.index_scores,
        query_positions=ring.query_positions, run_words=run_words, size=layer.spec.compression, top_k=top_k,
        words=words, chosen=attention.chosen,
    )  # fmt: skip


def score_positions(
    model: ModelGraph, layer: LayerAttention, q: Buffer, k: Buffer, weights: Buffer | None
) -> tuple[RingBuffer, int]:
    """Record the scores of positions or runs, whose heads have weights, or all the weight 1. Return their ring buffer,
    and its number of pages."""
    attention, heads = model.attention, layer.heads
    ring, rotated, keys = attention.index(layer, q, k)
    words = ring.capacity // PAGE_SIZE
    equal = constant_tensor(f"{layer.name}equal_weights", np.ones(heads.count, np.float32))
    model.graph.need_scratch(RADIX_BYTES)
    model.graph.op(
        f"{layer.name}score", SCORE_POSITIONS, q.rows, chunks=(4, 32), cost=score_cost(layer, ring), q=rotated,
        weights=weights or equal, weight_stride=4 * heads.count if weights else 0, heads=heads.count, dim=heads.key,
        k_cache=keys, entry_positions=ring.positions, oldest=ring.oldest, newest=ring.newest,
        sink_pages=ring.sink_entries // PAGE_SIZE, compressed_page=ring.compressed_page, segments=ring.segments,
        words=words, scores=attention.index_scores,
    )  # fmt: skip
    return ring, words


def select_blocks(model: ModelGraph, layer: LayerAttention, q: Buffer, k: Buffer, blocks: BlockChoice) -> None:
    """Choose blocks for each key head: see `localinfer.kernels.attention.block_indexer`."""
    attention, graph, heads = model.attention, model.graph, layer.heads
    ring, rotated, keys = attention.index(layer, q, k)
    words, sink_blocks = ring.capacity // PAGE_SIZE, -(-ring.sinks // blocks.size)
    # The visible positions may begin and end within blocks, and a panel may end in another one.
    places = sink_blocks + ring.capacity // blocks.size + 3
    reserve(model, words, heads.count, 8 * heads.count * (PAGE_SIZE // PANEL_KEYS) * words)
    graph.need_scratch(RADIX_BYTES + 4 * places)
    graph.op(
        f"{layer.name}score", SCORE_PANELS, q.rows, chunks=(4, 32), cost=score_cost(layer, ring), q=rotated,
        heads=heads.count, dim=heads.key, k_cache=keys, entry_positions=ring.positions, oldest=ring.oldest,
        newest=ring.newest, sink_pages=ring.sink_entries // PAGE_SIZE, segments=ring.segments, words=words,
        size=blocks.size, scores=attention.index_scores,
    )  # fmt: skip
    graph.op(
        f"{layer.name}choose", CHOOSE_BLOCKS, q.rows, chunks=(1, 8), scores=attention.index_scores, heads=heads.count,
        entry_positions=ring.positions, query_positions=ring.query_positions, segments=ring.segments, words=words,
        size=blocks.size, top_k=blocks.top_k, local=blocks.local, places=places, sink_blocks=sink_blocks,
        chosen=attention.chosen,
    )  # fmt: skip


def reserve(model: ModelGraph, words: int, choices: int, score_bytes: int) -> None:
    """Reserve memory for scores of this many bytes for each token, and for the bits of entries in `words` pages."""
    attention, batch = model.attention, model.graph.batch
    scores, chosen = attention.index_scores, attention.chosen
    scores.nbytes = max(scores.nbytes, score_bytes * batch)
    chosen.nbytes = max(chosen.nbytes, 8 * words * choices * batch)
    attention.choices = choices


def score_cost(layer: LayerAttention, ring: RingBuffer) -> CostModel:
    """Return the cost of the scores of an indexer, whose window does not limit compressed runs."""
    size, count, run = layer.heads.key, layer.heads.count, layer.spec.compression
    window = UNLIMITED_WINDOW if run else ring.visible.window + ring.sinks
    return CostModel(position_bytes=4 * size // (run or 1), position_fmas=count * size // (run or 1), window=window)
