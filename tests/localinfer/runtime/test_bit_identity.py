"""Logits are identical to the bit, for every split of the tokens into batches and any number of threads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import N, Write, assert_close, divergence, engine, tokens
from tiny import tiny_gemma3, tiny_llama

from localinfer import naive
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.graph_building import build_graph
from quant.jit.cpu import target

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"]
TINY = [tiny_llama, tiny_gemma3]


@pytest.mark.parametrize("tiny", TINY)
@pytest.mark.parametrize("kind", TYPES)
def test_batches_are_bit_identical(kind: str, tiny: Write, tmp_path: Path) -> None:
    with engine(tiny(tmp_path / "m.gguf", type=kind)) as e:
        expected = e.logits(tokens())
        for size in (1, 2, 5, 7, 64):
            assert e.rewind(0) == 0
            chunks = [e.logits(tokens()[at : at + size]) for at in range(0, N, size)]
            np.testing.assert_array_equal(np.concatenate(chunks), expected)


@pytest.mark.parametrize("tiny", TINY)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("precision", ["fast", "high"])
def test_draft_batches_are_bit_identical(kind: str, precision: str, tiny: Write, tmp_path: Path) -> None:
    """Draft tokens are partly rejected, in batches below and above the size limit of row-by-row decoding."""
    with engine(tiny(tmp_path / "m.gguf", type=kind), precision=precision) as e:
        one_by_one = np.concatenate([e.logits([id]) for id in tokens()])
        e.reset()
        for size in range(1, 17):
            at = e.n_past
            wrong = [269 - id for id in tokens()[at + size // 2 : at + size]]
            actual = e.evaluate_draft([*tokens()[at : at + size // 2], *wrong])
            np.testing.assert_array_equal(actual[: size // 2], one_by_one[at : at + size // 2])
            assert e.rewind(at + size // 2) == at + size // 2
        rows = e.evaluate_draft(tokens()[e.n_past : e.n_past + 16])
        np.testing.assert_array_equal(rows, one_by_one[at + 8 : at + 24])


MIXED = {"blk.0.attn_q.weight": "BF16", "blk.1.attn_k.weight": "BF16", "blk.1.ffn_up.weight": "BF16"}


@pytest.mark.parametrize("types", [{"type": "BF16"}, {"type": "Q8_0", **MIXED}], ids=["all", "some"])
def test_bf16_batches_are_bit_identical_in_fast_precision(types: dict[str, str], tmp_path: Path) -> None:
    """Activations may be rounded by a separate op, before matrix multiplications or between them."""
    path, ids, results = tiny_llama(tmp_path / "m.gguf", **types), tokens(40), []
    for threads in (1, 2):
        with engine(path, precision="fast", threads=threads) as e:
            for size in (1, 7, 40):
                assert e.rewind(0) == 0
                results.append(np.concatenate([e.logits(ids[at : at + size]) for at in range(0, 40, size)]))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    assert divergence(naive.forward(naive.Model(open_gguf(path)), ids), results[0]) <= 1e-3


@pytest.mark.parametrize(("precision", "times"), [("fast", 4 * 2 + 1), ("high", 0)])
def test_activations_are_quantized_once(precision: str, times: int, tmp_path: Path) -> None:
    """There is one op per input of q/k/v, attn_output, gate/up and ffn_down in both layers, and of the output layer."""
    graph = build_graph(open_gguf(tiny_llama(tmp_path / "m.gguf", type="BF16")), Options(precision=precision)).graph
    assert sum(op.name.endswith(".to_bf16") for op in graph.ops) == (times if target().has_bf16_dot else 0)


@pytest.mark.parametrize(
    ("tiny", "equal"),
    [
        (tiny_llama, np.testing.assert_array_equal),
        (tiny_gemma3, assert_close),  # its ring buffers depend on the batch size, and so does the order of sums
    ],
)
def test_results_do_not_depend_on_batch_size(tiny: Write, equal: Callable[..., None], tmp_path: Path) -> None:
    path = tiny(tmp_path / "m.gguf")
    results = []
    for batch_size in (512, 100, 16, 3, 1):
        with engine(path, batch_size=batch_size) as e:
            results.append(e.logits(tokens()))
    for result in results[1:]:
        equal(result, results[0])


@pytest.mark.parametrize("tiny", TINY)
@pytest.mark.parametrize("kind", ["F16", "Q4_K"])
def test_results_do_not_depend_on_threads(kind: str, tiny: Write, tmp_path: Path) -> None:
    path = tiny(tmp_path / "m.gguf", type=kind)
    results = []
    for threads in (1, 2, 3, 16):
        with engine(path, threads=threads) as e:
            results.append(np.concatenate([e.logits(tokens()[:100]), *(e.logits([t]) for t in tokens()[100:])]))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_f32_model_and_cache_are_not_rounded(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", type="F32")
    types: Any = {"cache_type_k": "f32", "cache_type_v": "f32"}
    with engine(path, threads=1, **types) as e:
        expected = e.logits(tokens())
    np.testing.assert_allclose(expected, naive.forward(naive.Model(open_gguf(path)), tokens()), rtol=0, atol=1e-4)
    with engine(path, threads=3, batch_size=64, **types) as e:
        for size in (1, 7, 64):
            assert e.rewind(0) == 0
            chunks = [e.logits(tokens()[at : at + size]) for at in range(0, N, size)]
            np.testing.assert_array_equal(np.concatenate(chunks), expected)
        assert e.rewind(90) == 90
        np.testing.assert_array_equal(e.logits(tokens()[90:]), expected[90:])


@pytest.mark.parametrize(("threads", "threads_batch", "n_prompt_threads"), [(1, 3, 3), (3, 1, 1), (2, 0, 2)])
def test_threads_batch_applies_to_prompts(
    threads: int, threads_batch: int, n_prompt_threads: int, tmp_path: Path
) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    with engine(path, threads=1) as e:
        expected = [e.logits(tokens()[:100]), e.logits(tokens()[100:101])]
    with engine(path, threads=threads, threads_batch=threads_batch) as e:
        assert (e.graph.threads, e.graph.threads_batch) == (threads, n_prompt_threads)
        np.testing.assert_array_equal(e.logits(tokens()[:100]), expected[0])
        np.testing.assert_array_equal(e.logits(tokens()[100:101]), expected[1])


@pytest.mark.parametrize("tiny", TINY)
def test_evaluate_is_the_last_row_of_logits(tiny: Write, tmp_path: Path) -> None:
    with engine(tiny(tmp_path / "m.gguf")) as e:
        last = e.evaluate(tokens()).copy()
        e.rewind(0)
        np.testing.assert_array_equal(e.logits(tokens())[-1], last)
        assert e.n_past == N


def test_repeated_evaluation_is_bit_identical(tmp_path: Path) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf")) as e:
        first = e.logits(tokens())
        e.rewind(0)
        np.testing.assert_array_equal(e.logits(tokens()), first)
