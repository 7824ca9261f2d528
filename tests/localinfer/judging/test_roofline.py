"""What there is to do, counted one by one; and what the machine can do: measuring kernels do all that they claim."""

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
from localinfer.engine.engine import Engine
from localinfer.engine.program import record
from localinfer.files.gguf import open_gguf
from localinfer.judging import roofline
from localinfer.judging.roofline import MULTIPLY, STREAMS, Roofline
from localinfer.ops.layout import OPERAND_BYTES, OPERAND_RING, products_shape, round_bytes
from localinfer.options import Options
from localinfer.plan.work import NOTHING_TO_DO, Amount, Work
from quant.jit import loader
from quant.jit.cpu import target
from quant.jit.kernel import Kernel
from quant.jit.record import HEADER_WORDS, RECORD_WORDS, RUN


@pytest.mark.parametrize("window", [1, 5, 8, 9, 13, 100])
@pytest.mark.parametrize(("tokens", "past"), [(1, 0), (4, 0), (4, 8), (12, 3), (1, 30)])
def test_cells_that_are_looked_at(window: int, tokens: int, past: int) -> None:
    seen = [set(range(max(0, position - window + 1), position + 1)) for position in range(past, past + tokens)]
    amount = Work(cell_bytes=3, cell_fmas=7, window=window).amount(tokens, past)
    assert amount == Amount(nbytes=3 * len(set().union(*seen)), fmas=7 * sum(map(len, seen)))


def test_no_tokens_are_no_work() -> None:
    assert Work(Amount(5), Amount(6, 7, 8, 9)).amount(0, 9) == NOTHING_TO_DO


def test_a_token_reads_all_weights_once_but_a_row_of_the_embedding(tmp_path: Path) -> None:
    """In F32 a weight is four bytes: what is read and what is multiplied can be told from each other's numbers."""
    f = open_gguf(tiny_llama(tmp_path / "m.gguf", type="F32", tied=False))
    plan = record(f, Options(ctx_size=128, threads=1)).plan
    n_vocab, n = f.tensors["token_embd.weight"].shape
    elements = {name: tensor.n_elements for name, tensor in f.tensors.items()}
    cells = 2 * 2 * 128 * 2  # two layers, keys and values of 2 x 64, in halves
    matrices = sum(count for name, count in elements.items() if len(f.tensors[name].shape) == 2) - n_vocab * n
    everything = sum(elements.values()) - n_vocab * n + n
    for past in (0, 9):
        amount = plan.amount(tokens=1, past=past, outputs=1)
        assert amount.nbytes == 4 * everything + cells * (past + 2)  # those that are seen, and one that is written
        assert amount.fmas == matrices + 2 * 2 * 256 * (past + 1)
        assert amount.dots == 0


def test_small_integers_and_the_output_layer_are_counted_apart(tmp_path: Path) -> None:
    f = open_gguf(tiny_llama(tmp_path / "m.gguf"))
    plan = record(f, Options(ctx_size=128, threads=1)).plan
    with_logits, without = (plan.amount(tokens=8, past=0, outputs=outputs) for outputs in (1, 0))
    output = f.tensors["token_embd.weight"]
    assert with_logits.dots - without.dots == output.n_elements
    assert with_logits.nbytes - without.nbytes == output.nbytes + f.tensors["output_norm.weight"].nbytes
    assert without.dots == 8 * sum(t.n_elements for t in f.tensors.values() if t.name.startswith("blk") and t.type)


def test_a_sliding_window_bounds_what_is_read(tmp_path: Path) -> None:
    f = open_gguf(tiny_gemma3(tmp_path / "m.gguf"))
    plan = record(f, Options(ctx_size=512, threads=1)).plan
    near, far = (plan.amount(tokens=1, past=past, outputs=1) for past in (100, 200))
    cell = 2 * 256 * 2
    assert far.nbytes - near.nbytes == 100 * cell  # of the one layer in seven that sees everything


def test_the_engine_counts_what_evaluate_does(tmp_path: Path) -> None:
    """Batches of 4: logits after the last token only, and later batches see what earlier ones left."""
    engine = Engine(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(ctx_size=128, batch_size=4, threads=1))
    plan = engine.plan
    parts = [plan.amount(4, 3, 0), plan.amount(4, 7, 0), plan.amount(2, 11, 1)]
    assert engine.amount(10, past=3) == sum(parts, NOTHING_TO_DO)
    engine.close()


def test_the_least_time_is_that_of_the_slower_half() -> None:
    roof = Roofline(threads=1, bandwidth=10.0, dots=100.0, fmas=50.0, pairs=200.0)
    amount = Amount(nbytes=40, dots=100, fmas=100, pairs=100)
    assert (roof.reading(amount), roof.computing(amount), roof.least(amount)) == (4.0, 3.5, 4.0)


# --- the kernels ---


def run(kernel: Kernel, *arguments: int, parts: int) -> None:
    """All parts of a kernel, one after the other."""
    addresses, _ = loader.addresses([kernel], paths.jit_dir())
    record = np.zeros(RECORD_WORDS, np.int64)
    record[HEADER_WORDS : HEADER_WORDS + len(arguments)] = arguments
    for part in range(parts):
        RUN(addresses[kernel])(ctypes.c_int64(record.ctypes.data), part, parts, 0)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("stream", STREAMS)
def test_stream_reads_every_byte(stream: Kernel, parts: int) -> None:
    memory = np.random.default_rng(0).integers(-1000, 1000, 256 * 91 // 4, np.int32)
    result = np.zeros(parts, np.int64)
    run(stream, memory.ctypes.data, memory.nbytes, result.ctypes.data, parts=parts)
    assert result.sum() == memory.sum()


STORED: dict[str, Callable[[NDArray[np.int64]], NDArray[Any]]] = {
    "dot": lambda numbers: numbers.astype(np.int8),
    "fma": lambda numbers: numbers.astype(np.float32),
    "pair": lambda numbers: to_bfloat(numbers.astype(np.float32)),
}


@pytest.mark.parametrize("kind", MULTIPLY)
def test_multiply_does_every_product(kind: str) -> None:
    rounds, parts = 19, 2
    shape = parts, OPERAND_RING, round_bytes(kind) // OPERAND_BYTES[kind]
    operands = np.random.default_rng(1).integers(0, 5, shape)
    result, stored = np.zeros(parts, np.int64), STORED[kind](operands)
    run(MULTIPLY[kind], stored.ctypes.data, rounds, result.ctypes.data, parts=parts)
    assert result.tolist() == [sum(products(kind, each[i % OPERAND_RING]) for i in range(rounds)) for each in operands]


def products(kind: str, operands: NDArray[np.generic]) -> int:
    """The total of a round: bytes lie as in a tile, [step][row][depth], then tokens likewise; floats row by row."""
    rows, tokens, columns = products_shape(kind)
    lanes = target().depth if kind == "dot" else columns
    x, y = np.split(operands.astype(np.int64), [rows * columns])
    return int(np.einsum("srd,std->", x.reshape(-1, rows, lanes), y.reshape(-1, tokens, lanes)))


def test_measured_is_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide limits: what any computer since 2010 stays within; on little memory, for quickness."""
    monkeypatch.setattr(roofline, "STREAMED_BYTES", 8 << 20)
    roofline.measured.cache_clear()
    one = roofline.measured(1)
    assert one is roofline.measured(1)
    assert 1e8 < one.bandwidth < 1e13
    assert 1e8 < one.dots < 1e13
    assert 1e8 < one.fmas < 1e13
    assert 1e8 < one.pairs < 1e13  # twice as many as of floats on Zen 4, as many on Sapphire Rapids
    assert target().bfloats or one.pairs == one.fmas
    roofline.measured.cache_clear()
