"""The cost of ops, counted one by one, and the measured roofline: measuring kernels do all the work they claim."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from random_blocks import to_bfloat
from tiny import tiny_gemma3, tiny_llama

from localinfer import paths
from localinfer.evaluation import roofline
from localinfer.evaluation.roofline import MULTIPLY, READ, Roofline, evaluation_cost
from localinfer.gguf.reader import open_gguf
from localinfer.graph.ops.cost import NO_COST, Cost, CostModel
from localinfer.kernels.layout import OPERAND_BYTES, OPERAND_RING, products_shape, round_bytes
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import build_graph
from quant.jit import loader
from quant.jit.cpu import target
from quant.jit.kernel import Kernel
from quant.jit.kernel_call import HEADER_WORDS, RECORD_WORDS, KernelFunction


@pytest.mark.parametrize("window", [1, 5, 8, 9, 13, 100])
@pytest.mark.parametrize(("tokens", "n_past"), [(1, 0), (4, 0), (4, 8), (12, 3), (1, 30)])
def test_attended_positions(window: int, tokens: int, n_past: int) -> None:
    attended = [set(range(max(0, position - window + 1), position + 1)) for position in range(n_past, n_past + tokens)]
    amount = CostModel(position_bytes=3, position_fmas=7, window=window).cost(tokens, n_past)
    assert amount == Cost(nbytes=3 * len(set().union(*attended)), fmas=7 * sum(map(len, attended)))


def test_no_tokens_cost_nothing() -> None:
    assert CostModel(Cost(5), Cost(6, 7, 8, 9)).cost(0, 9) == NO_COST


def test_token_reads_all_weights_once(tmp_path: Path) -> None:
    """In F32 a weight has four bytes, so the numbers of bytes and multiplications differ."""
    f = open_gguf(tiny_llama(tmp_path / "m.gguf", type="F32", tied=False))
    graph = build_graph(f, Options(ctx_size=128, threads=1)).graph
    n_vocab, n = f.tensors["token_embd.weight"].shape
    elements = {name: tensor.n_elements for name, tensor in f.tensors.items()}
    position_bytes = 2 * 2 * 128 * 2  # two layers, keys and values of 2 x 64, in halves
    matrices = sum(count for name, count in elements.items() if len(f.tensors[name].shape) == 2) - n_vocab * n
    everything = sum(elements.values()) - n_vocab * n + n
    for n_past in (0, 9):
        amount = graph.cost(tokens=1, n_past=n_past, outputs=1)  # reads n_past + 1 positions and writes one
        assert amount.nbytes == 4 * everything + position_bytes * (n_past + 2)
        assert amount.fmas == matrices + 2 * 2 * 256 * (n_past + 1)
        assert amount.dots == 0


def test_integer_products_are_counted_separately(tmp_path: Path) -> None:
    f = open_gguf(tiny_llama(tmp_path / "m.gguf"))
    graph = build_graph(f, Options(ctx_size=128, threads=1)).graph
    with_logits, without = (graph.cost(tokens=8, n_past=0, outputs=outputs) for outputs in (1, 0))
    output = f.tensors["token_embd.weight"]
    assert with_logits.dots - without.dots == output.n_elements
    assert with_logits.nbytes - without.nbytes == output.nbytes + f.tensors["output_norm.weight"].nbytes
    assert without.dots == 8 * sum(t.n_elements for t in f.tensors.values() if t.name.startswith("blk") and t.type)


def test_sliding_window_limits_reads(tmp_path: Path) -> None:
    f = open_gguf(tiny_gemma3(tmp_path / "m.gguf"))
    graph = build_graph(f, Options(ctx_size=512, threads=1)).graph
    near, far = (graph.cost(tokens=1, n_past=n_past, outputs=1) for n_past in (100, 200))
    position_bytes = 2 * 128 * 2
    assert far.nbytes - near.nbytes == 100 * position_bytes  # of the one layer in seven with full attention


def test_engine_counts_evaluated_work(tmp_path: Path) -> None:
    """Batches of 4: logits after the last token only, and later batches attend to earlier ones."""
    engine = Engine.load(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(ctx_size=128, batch_size=4, threads=1))
    graph = engine.graph
    batches = [graph.cost(4, 3, 0), graph.cost(4, 7, 0), graph.cost(2, 11, 1)]
    assert evaluation_cost(graph, 10, n_past=3) == sum(batches, NO_COST)
    engine.close()


def test_lower_bound_is_the_slower_resource() -> None:
    roof = Roofline(threads=1, bandwidth=10.0, dots=100.0, fmas=50.0, pairs=200.0)
    amount = Cost(nbytes=40, dots=100, fmas=100, bf16_pairs=100)
    assert (roof.memory_time(amount), roof.compute_time(amount), roof.lower_bound(amount)) == (4.0, 3.5, 4.0)


# --- kernels ---


def run(kernel: Kernel, *arguments: int, n_threads: int) -> None:
    """Run all chunks of a kernel, one after the other."""
    addresses, _ = loader.load_kernels([kernel], paths.jit_dir())
    record = np.zeros(RECORD_WORDS, np.int64)
    record[HEADER_WORDS : HEADER_WORDS + len(arguments)] = arguments
    for chunk in range(n_threads):
        KernelFunction(addresses[kernel])(ctypes.c_int64(record.ctypes.data), chunk, n_threads, 0)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("prefetch", [0, 1024])
@pytest.mark.parametrize("streams", [1, 2, 8])
def test_every_byte_is_read(streams: int, prefetch: int, n_threads: int) -> None:
    memory = np.random.default_rng(0).integers(-1000, 1000, 256 * streams * 91 // 4, np.int32)
    result = np.zeros(n_threads, np.int64)
    arguments = memory.ctypes.data, memory.nbytes, streams, prefetch, result.ctypes.data
    run(READ, *arguments, n_threads=n_threads)
    assert result.sum() == memory.sum()


STORED: dict[str, Callable[[NDArray[np.int64]], NDArray[Any]]] = {
    "dot": lambda numbers: numbers.astype(np.int8),
    "fma": lambda numbers: numbers.astype(np.float32),
    "pair": lambda numbers: to_bfloat(numbers.astype(np.float32)),
}


@pytest.mark.parametrize("kind", MULTIPLY)
def test_multiply_computes_every_product(kind: str) -> None:
    rounds, n_threads = 19, 2
    shape = n_threads, OPERAND_RING, round_bytes(kind) // OPERAND_BYTES[kind]
    operands = np.random.default_rng(1).integers(0, 5, shape)
    result, stored = np.zeros(n_threads, np.int64), STORED[kind](operands)
    run(MULTIPLY[kind], stored.ctypes.data, rounds, result.ctypes.data, n_threads=n_threads)
    assert result.tolist() == [sum(products(kind, each[i % OPERAND_RING]) for i in range(rounds)) for each in operands]


def products(kind: str, operands: NDArray[np.generic]) -> int:
    """The total of a round: bytes are laid out as in a tile, [step][row][depth], tokens likewise; floats row by row."""
    rows, tokens, columns = products_shape(kind)
    lanes = target().depth if kind == "dot" else columns
    x, y = np.split(operands.astype(np.int64), [rows * columns])
    return int(np.einsum("srd,std->", x.reshape(-1, rows, lanes), y.reshape(-1, tokens, lanes)))


def test_measured_rates_are_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide limits that any computer since 2010 meets; with little memory, for speed."""
    monkeypatch.setattr(roofline, "STREAMED_BYTES", 8 << 20)
    roofline.measure.cache_clear()
    one = roofline.measure(1)
    assert one is roofline.measure(1)
    assert 1e8 < one.bandwidth < 1e13
    assert 1e8 < one.dots < 1e13
    assert 1e8 < one.fmas < 1e13
    assert 1e8 < one.pairs < 1e13  # twice as many as of floats on Zen 4, as many on Sapphire Rapids
    assert target().has_bf16_dot or one.pairs == one.fmas
    roofline.measure.cache_clear()


def test_bandwidth_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is measured once for each number of threads, unless a command measures it anyway."""
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(roofline.loader, "load_kernels", lambda kernels, root: ({}, []))
    measured = iter([5e9, 7e9, 6e9])
    monkeypatch.setattr(roofline, "bandwidth", lambda threads, seconds: next(measured))
    assert [roofline.known_bandwidth(threads) for threads in (1, 2, 1, 2)] == [5e9, 7e9, 5e9, 7e9]
    roofline.remember_bandwidth(1, 4e9)
    assert [roofline.known_bandwidth(threads) for threads in (1, 2)] == [4e9, 7e9]
    assert [roofline.known_bandwidth(1, again=again) for again in (True, False)] == [6e9, 6e9]
    [file] = tmp_path.rglob(roofline.BANDWIDTH_FILE)
    for damaged in ("{", "[1]", '{"1": "x", "2": -1, "3": 8e9}'):
        file.write_text(damaged)
        assert roofline.remembered_bandwidths() == ({"3": 8e9} if "3" in damaged else {})
