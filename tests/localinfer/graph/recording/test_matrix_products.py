"""How matrix products are divided among threads, and which op converts their input."""

from pathlib import Path

import pytest
from tiny import tiny_llama

from localinfer.gguf.reader import open_gguf
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.recording.matrix_products import (
    CHUNK_PANELS,
    ENOUGH_CHUNKS,
    MAX_LARGE_CHUNKS,
    MAX_SMALL_CHUNKS,
    MAX_TOKEN_PARTS,
    MIN_CHUNK_BYTES,
    SHORT_CHUNK_PANELS,
    SHORT_ROW,
    chunk_counts,
    matmul,
    token_parts,
)
from localinfer.kernels.signatures import ADD
from quant.jit.cpu import target


@pytest.mark.parametrize(
    ("threads", "nbytes", "chunks"),
    [
        (1, 1 << 30, 1),  # no other thread can steal a chunk
        (4, 1, 1),
        (4, 3 * 4 * MIN_CHUNK_BYTES, 3),
        (4, 1 << 30, MAX_SMALL_CHUNKS),
    ],
)
def test_chunks_per_thread(threads: int, nbytes: int, chunks: int) -> None:
    graph = ComputeGraph(1, 1, threads, threads, passes=1)
    small, _ = chunk_counts(graph, nbytes, target().rows, 256)
    assert small == chunks


@pytest.mark.parametrize("n_in", [SHORT_ROW, SHORT_ROW + 256])
@pytest.mark.parametrize(
    ("threads", "thread_panels", "parts", "chunks"),
    [
        (1, 1, 1, 1),
        (MAX_TOKEN_PARTS, 1, MAX_TOKEN_PARTS, MAX_TOKEN_PARTS),  # chunks of one panel
        (4, ENOUGH_CHUNKS, None, ENOUGH_CHUNKS),  # tokens are divided, so that chunks have enough panels
        (4, SHORT_CHUNK_PANELS * ENOUGH_CHUNKS, 1, None),  # panels are enough
        (4, 1000 * SHORT_CHUNK_PANELS, 1, MAX_LARGE_CHUNKS),
    ],
)
def test_few_panels_are_divided_by_tokens(
    n_in: int, threads: int, thread_panels: int, parts: int | None, chunks: int | None
) -> None:
    graph, n_out = ComputeGraph(1, 1, threads, threads, passes=1), thread_panels * threads * target().rows
    panels = SHORT_CHUNK_PANELS if n_in == SHORT_ROW else CHUNK_PANELS
    expected = parts or panels, chunks or min(SHORT_CHUNK_PANELS * ENOUGH_CHUNKS // panels, MAX_LARGE_CHUNKS)
    assert (token_parts(graph, n_out, n_in), chunk_counts(graph, 1, n_out, n_in)[1]) == expected


def test_products_of_one_input_convert_it_once(tmp_path: Path) -> None:
    tensors = open_gguf(tiny_llama(tmp_path / "m.gguf", type="Q8_0")).tensors
    graph = ComputeGraph(8, 8, 1, 1, passes=1)
    weight = tensors["blk.0.attn_q.weight"]
    x = graph.buffer(weight.shape[1])
    graph.op("add", ADD, x.rows, branch=x, factor=1.0, n=x.n, x=x)
    matmul(graph, x, weight, barrier=False)
    matmul(graph, x, tensors["blk.0.attn_k.weight"])
    names = ["add", "blk.0.attn_q.quantized", "blk.0.attn_q.weight", "blk.0.attn_k.weight"]
    assert [op.name for op in graph.ops] == names
    assert [product.first_op for product in graph.products] == [2, 2]  # both are in one stage
