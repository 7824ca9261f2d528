"""The KV cache of an engine: rewinding, sliding windows, ring buffers and quantized types."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import N, Write, assert_close, biased, divergence, engine, tokens
from rounding_oracle import Quantized, Rounded
from tiny import tiny_gemma3, tiny_llama

from localinfer import naive
from localinfer.errors import ContextOverflowError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.graph_building import build_graph_within_memory

TINY = [tiny_llama, tiny_gemma3]


@pytest.mark.parametrize("tiny", TINY)
def test_rewind_discards_later_tokens(tiny: Write, tmp_path: Path) -> None:
    with engine(tiny(tmp_path / "m.gguf")) as e:
        expected = e.logits(tokens())
        e.rewind(100)
        e.evaluate([7] * 20)
        assert e.rewind(90) == 90
        assert e.n_past == 90
        np.testing.assert_array_equal(e.logits(tokens()[90:]), expected[90:])


def test_rewind_beyond_the_end_keeps_everything(tmp_path: Path) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf")) as e:
        e.evaluate(tokens(10))
        assert e.rewind(11) == e.n_past == 10


def test_rewind_beyond_a_sliding_window_keeps_nothing(tmp_path: Path) -> None:
    path = tiny_gemma3(tmp_path / "m.gguf")
    with engine(path, ctx_size=400, batch_size=16) as e:
        e.logits(tokens(300))
        n_cached = e.rewind(295)
        assert n_cached in (0, 295)
        reference = naive.forward(Rounded(open_gguf(path)), tokens(300))
        assert_close(e.evaluate(tokens(300)[n_cached:]), reference[-1])
        assert e.rewind(20) == e.n_past == 0  # the sliding window of position 20 has been overwritten
        assert_close(e.evaluate(tokens(50)), reference[49])


def test_the_default_context_fits_into_memory(tmp_path: Path) -> None:
    f = open_gguf(tiny_llama(tmp_path / "m.gguf", **{"llama.context_length": 100_000}))
    largest = build_graph_within_memory(1 << 40, f, Options())
    assert largest.context.n_ctx == 32_768
    weights = sum(tensor.nbytes for tensor in f.tensors.values())
    smaller = build_graph_within_memory(weights + largest.graph.nbytes - 1, f, Options())
    assert smaller.context.n_ctx == 16_384
    assert build_graph_within_memory(0, f, Options()).context.n_ctx == 2048
    assert build_graph_within_memory(0, f, Options(ctx_size=5000)).context.n_ctx == 5000


def test_sliding_window_memory(tmp_path: Path) -> None:
    options = {"ctx_size": 4096, "batch_size": 16}
    with engine(tiny_gemma3(tmp_path / "g.gguf"), **options) as sliding:
        one_layer = 2 * 2 * 128 * 4096  # keys and values, two bytes, two heads of 64
        # One of the seven layers has full attention.
        assert sliding.compiled_graph.model_graph.cache_bytes < 2 * one_layer


@pytest.mark.parametrize("tiny", TINY)
@pytest.mark.parametrize("keep", [0, 4, 70])
def test_ring_buffer_keeps_sinks_and_latest_tokens(keep: int, tiny: Write, tmp_path: Path) -> None:
    path, ids = tiny(tmp_path / "m.gguf"), tokens(400)
    reference = Rounded(open_gguf(path))
    reference.n_ctx = N
    with engine(path, ctx_policy="ring", keep=keep, batch_size=64) as e:
        reference.sinks = e.compiled_graph.model_graph.context.sinks
        assert keep <= reference.sinks < keep + 64
        expected = e.logits(ids)
        assert_close(expected, naive.forward(reference, ids))
        for size in (1, 7, 64):
            assert e.rewind(0) == 0
            chunks = [e.logits(ids[at : at + size]) for at in range(0, len(ids), size)]
            np.testing.assert_array_equal(np.concatenate(chunks), expected)
            assert e.n_past == len(ids)


@pytest.mark.parametrize(
    ("tiny", "kind", "noise"),
    [
        (tiny_llama, "q8_0", 1e-5),
        (tiny_gemma3, "q4_0", 5e-4),  # float32 error may select another code
        (biased, "q8_0", 1e-5),
        (biased, "q4_0", 5e-4),
    ],
)
def test_quantized_ring_buffer(tiny: Write, kind: str, noise: float, tmp_path: Path) -> None:
    path, ids = tiny(tmp_path / "m.gguf"), tokens(300)
    reference = Quantized(open_gguf(path))
    reference.kind, reference.n_ctx, reference.sinks, reference.anchored = kind, N, 64, True
    types: Any = {"cache_type_k": kind, "cache_type_v": kind}
    with engine(path, ctx_policy="ring", batch_size=64, **types) as e:
        expected = e.logits(ids)
        assert divergence(naive.forward(reference, ids), expected) <= noise
        for size in (1, 7, 64):
            assert e.rewind(0) == 0
            chunks = [e.logits(ids[at : at + size]) for at in range(0, len(ids), size)]
            np.testing.assert_array_equal(np.concatenate(chunks), expected)
        assert e.rewind(250) == 250
        np.testing.assert_array_equal(e.logits(ids[250:]), expected[250:])


@pytest.mark.parametrize("keep", [4, 70])
def test_small_ring_buffer_keeps_anchors(keep: int, tmp_path: Path) -> None:
    """Pages after the sinks may begin at any position; a rewind keeps anchors, too."""
    path, ids = biased(tmp_path / "m.gguf"), tokens(500)
    reference = Quantized(open_gguf(path))
    reference.kind, reference.n_ctx, reference.anchored = "q8_0", 100, True
    types: Any = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    with engine(path, ctx_policy="ring", ctx_size=100, batch_size=16, keep=keep, **types) as e:
        reference.sinks = e.compiled_graph.model_graph.context.sinks
        expected = e.logits(ids)
        assert divergence(naive.forward(reference, ids), expected) <= 1e-5
        for n in (499, 480, 430):
            n_cached = e.rewind(n)
            np.testing.assert_array_equal(e.logits(ids[n_cached:]), expected[n_cached:])


def test_anchors_remove_the_quantization_error_of_key_biases(tmp_path: Path) -> None:
    path, ids = biased(tmp_path / "m.gguf"), tokens()
    expected = naive.forward(naive.Model(open_gguf(path)), ids)
    actual = {}
    for kind in ("f16", "q8_0", "q4_0"):
        with engine(path, cache_type_k=kind) as e:
            actual[kind] = divergence(expected, e.logits(ids))
    assert actual["q8_0"] <= 1.2 * actual["f16"]
    assert actual["q4_0"] <= 2e-3


@pytest.mark.parametrize("tiny", TINY)
def test_ring_buffer_is_bit_identical_until_it_wraps(tiny: Write, tmp_path: Path) -> None:
    """The second context size splits sums into larger chunks."""
    path, ids = tiny(tmp_path / "m.gguf"), tokens(N)
    for size in (N, 16_384):
        with engine(path, ctx_size=size) as e:
            expected = np.concatenate([e.logits(ids[:100]), *(e.logits([each]) for each in ids[100:])])
        with engine(path, ctx_size=size, ctx_policy="ring") as e:
            expected = np.concatenate([e.logits(ids[:100]), *(e.logits([each]) for each in ids[100:])])
        np.testing.assert_array_equal(expected, expected)


def test_ring_buffer_wraps_repeatedly(tmp_path: Path) -> None:
    path, ids = tiny_llama(tmp_path / "m.gguf"), tokens(33_000)  # beyond position 2 ** 15
    reference = Rounded(open_gguf(path))
    reference.n_ctx, reference.sinks = 64, 4
    with engine(path, ctx_size=64, ctx_policy="ring", keep=4, batch_size=64) as e:
        logits = e.evaluate(ids)
    # RoPE depends on distances only, and two layers reach two contexts back.
    np.testing.assert_allclose(logits, naive.forward(reference, ids[:4] + ids[-200:])[-1], atol=6e-3)


def test_engine_is_usable_after_context_overflow(tmp_path: Path) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf"), ctx_size=32) as e:
        expected = e.logits(tokens(32))
        e.rewind(30)
        with pytest.raises(ContextOverflowError, match="--ctx-size"):
            e.evaluate(tokens(3))
        assert e.n_past == 30
        np.testing.assert_array_equal(e.logits(tokens(32)[30:]), expected[30:])
