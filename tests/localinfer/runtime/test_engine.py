"""The engine against the oracle: every format, every architecture, and every split of the tokens into batches.

The engine rounds in two places by design: activations multiplied with quantized weights to 15 bits, with a scale per
32 values, and keys and values to the cache type (half precision by default). The oracle `Rounded` does the same. The
remaining difference is float32 error, which can exceed the last bit: it decides how a value between two quantization
steps is rounded.
"""

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import naive
import numpy as np
import pytest
from locations import DATA
from numpy.typing import NDArray
from tiny import tiny_gemma3, tiny_llama, tiny_qwen2, tiny_qwen3, tiny_qwen3moe

from localinfer.errors import ContextOverflowError, LocalInferError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime import thread_pool
from localinfer.runtime.compiled_graph import build_graph, build_graph_within_memory
from localinfer.runtime.engine import Engine
from quant.jit.cpu import target
from quant.matmul.layout import MAX_QUANT

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"]
TINY = [tiny_llama, tiny_gemma3]
Write = Callable[..., Path]
N = 150  # tokens: nine windows of tiny_gemma3

Logits = NDArray[np.floating[Any]]


class Rounded(naive.Model):
    """An oracle that rounds like the engine but computes exact sums."""

    def matmul(self, name: str, x: naive.Floats) -> naive.Floats:
        stored = name.partition(" ")[0]  # the tensor of an expert's matrix
        floats = name != "output chunk" and self.file.tensors[f"{stored}.weight"].type_name in (
            "F32",
            "F16",
            "BF16",
        )
        return super().matmul(name, x if floats else round_activations(x))

    def store_in_cache(self, kv: naive.Floats, anchors: naive.Floats | float = 0.0) -> naive.Floats:
        return kv.astype(np.float16).astype(kv.dtype)


class Quantized(Rounded):
    """An oracle with a quantized KV cache. Keys are quantized relative to their anchors."""

    kind = "f16"

    def store_in_cache(self, kv: naive.Floats, anchors: naive.Floats | float = 0.0) -> naive.Floats:
        rounded_anchors = walsh_hadamard(anchors + 0 * kv).astype(np.float16)
        blocks = gguf.quantize(
            (walsh_hadamard(kv) - rounded_anchors).astype(np.float32), gguf.GGMLQuantizationType[self.kind.upper()]
        )
        return walsh_hadamard(
            gguf.dequantize(blocks, gguf.GGMLQuantizationType[self.kind.upper()]).astype(kv.dtype) + rounded_anchors
        )


def walsh_hadamard(x: naive.Floats) -> naive.Floats:
    """The Walsh-Hadamard transform of the last axis, which is its own inverse."""
    n = x.shape[-1]
    index = np.arange(n)
    signs = 1.0 - 2.0 * (np.bitwise_count(index[:, None] & index) % 2)
    return x @ signs.astype(x.dtype) / np.sqrt(n)


def round_activations(x: naive.Floats) -> naive.Floats:
    """Return every 32 values as integer multiples of their largest magnitude over 16,319."""
    groups = x.reshape(-1, 32)
    scale = abs(groups).max(axis=1, keepdims=True) / MAX_QUANT[2]
    return (np.rint(groups / np.where(scale > 0, scale, 1)) * scale).reshape(x.shape)


@contextmanager
def engine(path: Path, **options: Any) -> Iterator[Engine]:
    """Open an engine with two threads and a context of N tokens, unless the options differ."""
    opened = Engine.load(open_gguf(path), Options(**({"threads": 2, "ctx_size": N, "precision": "high"} | options)))
    try:
        yield opened
    finally:
        opened.close()


def biased(path: Path) -> Path:
    """Write a tiny qwen2 with large key biases in the slowest rotating pairs, as in trained models."""
    bias = np.random.default_rng(0).standard_normal((2, 2, 32)) * np.where(np.arange(32) < 24, 0.5, 100)
    return tiny_qwen2(path, **{f"blk.{n}.attn_k.bias": bias.ravel().astype(np.float32) for n in range(2)})


def tokens(n: int = N) -> list[int]:
    """Return the same random ids every time, all within both tiny vocabularies."""
    return np.random.default_rng(0).integers(0, 270, n).tolist()


def assert_close(logits: Logits, expected: Logits) -> None:
    """Check that logits agree up to float32 error. Logits of tiny models have a standard deviation of at least 1.6.

    `Rounded` in float32 differs from itself in float64 by up to 0.003, with a root mean square of 0.0004.
    """
    np.testing.assert_allclose(logits, expected, atol=6e-3)
    assert np.sqrt(np.mean((logits - expected) ** 2)) <= 8e-4


def divergence(p: Logits, q: Logits) -> float:
    """Return the mean KL(P || Q) over the rows."""
    log_p, log_q = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (p, q.astype(np.float64)))
    return float((np.exp(log_p) * (log_p - log_q)).sum(axis=-1).mean())


# ------------------------------------------------------------------------------------- correctness


@pytest.mark.parametrize("tiny", TINY)
@pytest.mark.parametrize("kind", TYPES)
def test_every_format_agrees_with_the_oracle(kind: str, tiny: Write, tmp_path: Path) -> None:
    path = tiny(tmp_path / "m.gguf", type=kind)
    with engine(path) as e:
        logits = e.logits(tokens())
    exact = naive.forward(naive.Model(open_gguf(path)), tokens())
    reference = naive.forward(Rounded(open_gguf(path)), tokens())
    assert_close(logits, reference)
    assert divergence(exact, logits) <= 1e-6


@pytest.mark.parametrize("tiny", [tiny_qwen2, tiny_qwen3])
def test_other_architectures_agree_with_the_oracle(tiny: Write, tmp_path: Path) -> None:
    """Compare in one batch and token by token."""
    path = tiny(tmp_path / "m.gguf")
    with engine(path) as e:
        logits = e.logits(tokens())
        e.reset()
        one_by_one = np.array([e.evaluate([token]).copy() for token in tokens(20)])
    assert_close(logits, naive.forward(Rounded(open_gguf(path)), tokens()))
    np.testing.assert_array_equal(one_by_one, logits[:20])


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "F16", "BF16"])
def test_experts_agree_with_the_oracle(kind: str, tmp_path: Path) -> None:
    """Compare in one batch, in chunks and token by token: the bits do not depend on how experts' rows are grouped."""
    path = tiny_qwen3moe(tmp_path / "m.gguf", type=kind, n_ff=96, seed=1)  # a seed without ties in the router
    with engine(path) as e:
        logits = e.logits(tokens())
        for size in (1, 2, 3, 40):
            e.reset()
            parts = [e.logits(tokens()[at : at + size]) for at in range(0, N, size)]
            np.testing.assert_array_equal(np.concatenate(parts), logits)
    assert divergence(naive.forward(naive.Model(open_gguf(path)), tokens()), logits) <= 1e-6


@pytest.mark.parametrize("base", [10_000.0, 1_000_000.0])  # of sliding-window layers
def test_rope_factors_apply_to_global_layers(base: float, tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.geomspace(1, 32, 128)}
    path = tiny_gemma3(tmp_path / "m.gguf", **{"gemma3.rope.freq_base_swa": base}, **factors)
    with engine(path) as e:
        logits = e.logits(tokens())
    model = Rounded(open_gguf(path))
    assert_close(logits, naive.forward(model, tokens()))
    model.factors.clear()
    assert divergence(naive.forward(model, tokens()), logits) > 1e-4


def test_rope_factors_apply_to_all_layers_without_windows(tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    path = tiny_llama(tmp_path / "m.gguf", **linear, **{"rope_freqs.weight": np.geomspace(1, 32, 32)})
    with engine(path) as e:
        logits = e.logits(tokens())
    assert_close(logits, naive.forward(Rounded(open_gguf(path)), tokens()))


def test_largest_gemma3_has_its_own_attention_scale(tmp_path: Path) -> None:
    """The model is detected by its number of blocks. Rounding in so many blocks increases the
    difference from the oracle."""
    path = tiny_gemma3(tmp_path / "m.gguf", n_layer=62)
    with engine(path) as e:
        logits = e.logits(tokens(8))
    model = Rounded(open_gguf(path))
    assert divergence(naive.forward(model, tokens(8)), logits) <= 1e-6
    model.scale = 256**-0.5
    assert divergence(naive.forward(model, tokens(8)), logits) > 1e-3


@pytest.mark.parametrize("tiny", TINY)
def test_mixed_formats_with_untied_output(tiny: Write, tmp_path: Path) -> None:
    mixed = {"blk.0.attn_v.weight": "Q6_K", "blk.1.ffn_down.weight": "F16", "token_embd.weight": "Q5_0"}
    path = tiny(tmp_path / "m.gguf", type="Q4_K", tied=False, **mixed)
    with engine(path) as e:
        logits = e.logits(tokens())
    assert divergence(naive.forward(naive.Model(open_gguf(path)), tokens()), logits) <= 1e-6


@pytest.mark.parametrize("heads", [(4, 1), (4, 4), (3, 1), (6, 2), (5, 1), (18, 1)])
def test_grouped_query_attention_shapes(heads: tuple[int, int], tmp_path: Path) -> None:
    n_head, n_head_kv = heads
    shape = {"n_head": n_head, "n_head_kv": n_head_kv, "head_dim": 64, "n_embd": 64 * n_head}
    path = tiny_llama(tmp_path / "m.gguf", **shape)
    with engine(path) as e:
        logits = e.logits(tokens())
    assert divergence(naive.forward(naive.Model(open_gguf(path)), tokens()), logits) <= 1e-6


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_real_models_agree_with_the_oracle_and_with_llama_cpp(name: str, request: pytest.FixtureRequest) -> None:
    fixture = json.loads((DATA / f"logits_{name}.json").read_text())
    ids, done = fixture["tokens"], 0
    with engine(request.getfixturevalue(name), ctx_size=len(ids)) as e:
        for position in map(int, fixture["exact"]):
            logits, done = e.evaluate(ids[done : position + 1]), position + 1
            assert distance(logits, fixture["exact"][str(position)]) <= 0.03, position
            for batch in ("batch 512", "batch 1"):  # llama.cpp differs from the exact values by up to 0.8
                assert distance(logits, fixture[batch][str(position)]) <= 1.0, (batch, position)


def distance(logits: NDArray[np.float32], recorded: dict[str, Any]) -> float:
    """Return the largest difference of the log-probabilities of the recorded tokens."""
    ids, expected = (np.array(each) for each in zip(*recorded["top"], strict=True))
    total = np.log(np.exp(logits.astype(np.float64)).sum())
    return float(abs((logits[ids] - total) - (expected - recorded["logsumexp"])).max())


# ------------------------------------------------------------------ bit-identical batches


@pytest.mark.parametrize("tiny", TINY)
@pytest.mark.parametrize("kind", TYPES)
def test_batches_are_bit_identical(kind: str, tiny: Write, tmp_path: Path) -> None:
    with engine(tiny(tmp_path / "m.gguf", type=kind)) as e:
        whole = e.logits(tokens())
        for size in (1, 2, 5, 7, 64):
            assert e.rewind(0) == 0
            chunks = [e.logits(tokens()[at : at + size]) for at in range(0, N, size)]
            np.testing.assert_array_equal(np.concatenate(chunks), whole)


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
    plan = build_graph(open_gguf(tiny_llama(tmp_path / "m.gguf", type="BF16")), Options(precision=precision)).graph
    assert sum(op.name.endswith(".to_bf16") for op in plan.ops) == (times if target().has_bf16_dot else 0)


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
        whole = e.logits(tokens())
    np.testing.assert_allclose(whole, naive.forward(naive.Model(open_gguf(path)), tokens()), rtol=0, atol=1e-4)
    with engine(path, threads=3, batch_size=64, **types) as e:
        for size in (1, 7, 64):
            assert e.rewind(0) == 0
            chunks = [e.logits(tokens()[at : at + size]) for at in range(0, N, size)]
            np.testing.assert_array_equal(np.concatenate(chunks), whole)
        assert e.rewind(90) == 90
        np.testing.assert_array_equal(e.logits(tokens()[90:]), whole[90:])


@pytest.mark.parametrize(("threads", "threads_batch", "many"), [(1, 3, 3), (3, 1, 1), (2, 0, 2)])
def test_threads_batch_applies_to_prompts(threads: int, threads_batch: int, many: int, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    with engine(path, threads=1) as e:
        expected = [e.logits(tokens()[:100]), e.logits(tokens()[100:101])]
    with engine(path, threads=threads, threads_batch=threads_batch) as e:
        assert (e.graph.threads, e.graph.threads_batch) == (threads, many)
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


# --------------------------------------------------------------------------------------------- KV cache


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
        length = e.rewind(295)
        assert length in (0, 295)
        reference = naive.forward(Rounded(open_gguf(path)), tokens(300))
        assert_close(e.evaluate(tokens(300)[length:]), reference[-1])
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
        one_layer = 2 * 2 * 256 * 4096  # keys and values, two bytes, one head of 256
        assert sliding.compiled_graph.kv_bytes < 2 * one_layer  # one of the seven layers has full attention


@pytest.mark.parametrize("tiny", TINY)
@pytest.mark.parametrize("keep", [0, 4, 70])
def test_ring_buffer_keeps_sinks_and_latest_tokens(keep: int, tiny: Write, tmp_path: Path) -> None:
    path, many = tiny(tmp_path / "m.gguf"), tokens(400)
    reference = Rounded(open_gguf(path))
    reference.n_ctx = N
    with engine(path, ctx_policy="ring", keep=keep, batch_size=64) as e:
        reference.sinks = e.compiled_graph.model_graph.context.sinks
        assert keep <= reference.sinks < keep + 64
        whole = e.logits(many)
        assert_close(whole, naive.forward(reference, many))
        for size in (1, 7, 64):
            assert e.rewind(0) == 0
            chunks = [e.logits(many[at : at + size]) for at in range(0, len(many), size)]
            np.testing.assert_array_equal(np.concatenate(chunks), whole)
            assert e.n_past == len(many)


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
    path, many = tiny(tmp_path / "m.gguf"), tokens(300)
    reference = Quantized(open_gguf(path))
    reference.kind, reference.n_ctx, reference.sinks, reference.anchored = kind, N, 64, True
    types: Any = {"cache_type_k": kind, "cache_type_v": kind}
    with engine(path, ctx_policy="ring", batch_size=64, **types) as e:
        whole = e.logits(many)
        assert divergence(naive.forward(reference, many), whole) <= noise
        for size in (1, 7, 64):
            assert e.rewind(0) == 0
            chunks = [e.logits(many[at : at + size]) for at in range(0, len(many), size)]
            np.testing.assert_array_equal(np.concatenate(chunks), whole)
        assert e.rewind(250) == 250
        np.testing.assert_array_equal(e.logits(many[250:]), whole[250:])


@pytest.mark.parametrize("keep", [4, 70])
def test_small_ring_buffer_keeps_anchors(keep: int, tmp_path: Path) -> None:
    """Pages after the sinks may begin at any position; a rewind keeps anchors, too."""
    path, many = biased(tmp_path / "m.gguf"), tokens(500)
    reference = Quantized(open_gguf(path))
    reference.kind, reference.n_ctx, reference.anchored = "q8_0", 100, True
    types: Any = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    with engine(path, ctx_policy="ring", ctx_size=100, batch_size=16, keep=keep, **types) as e:
        reference.sinks = e.compiled_graph.model_graph.context.sinks
        whole = e.logits(many)
        assert divergence(naive.forward(reference, many), whole) <= 1e-5
        for n in (499, 480, 430):
            length = e.rewind(n)
            np.testing.assert_array_equal(e.logits(many[length:]), whole[length:])


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
    path, many = tiny(tmp_path / "m.gguf"), tokens(N)
    for size in (N, 16_384):
        with engine(path, ctx_size=size) as e:
            expected = np.concatenate([e.logits(many[:100]), *(e.logits([each]) for each in many[100:])])
        with engine(path, ctx_size=size, ctx_policy="ring") as e:
            whole = np.concatenate([e.logits(many[:100]), *(e.logits([each]) for each in many[100:])])
        np.testing.assert_array_equal(whole, expected)


def test_ring_buffer_wraps_repeatedly(tmp_path: Path) -> None:
    path, many = tiny_llama(tmp_path / "m.gguf"), tokens(33_000)  # beyond position 2 ** 15
    reference = Rounded(open_gguf(path))
    reference.n_ctx, reference.sinks = 64, 4
    with engine(path, ctx_size=64, ctx_policy="ring", keep=4, batch_size=64) as e:
        logits = e.evaluate(many)
    # RoPE depends on distances only, and two layers reach two contexts back.
    np.testing.assert_allclose(logits, naive.forward(reference, many[:4] + many[-200:])[-1], atol=6e-3)


def test_engine_is_usable_after_context_overflow(tmp_path: Path) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf"), ctx_size=32) as e:
        expected = e.logits(tokens(32))
        e.rewind(30)
        with pytest.raises(ContextOverflowError, match="--ctx-size"):
            e.evaluate(tokens(3))
        assert e.n_past == 30
        np.testing.assert_array_equal(e.logits(tokens(32)[30:]), expected[30:])


# ------------------------------------------------------------------------------------------- errors and interrupts


@pytest.mark.parametrize("bad", [[], [-1], [1 << 20], [[1, 2]], [0.5], [1 << 70], ["a"]])
def test_invalid_ids(bad: list[Any], tmp_path: Path) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf")) as e:
        with pytest.raises(UsageError):
            e.evaluate(bad)
        assert e.n_past == 0


def test_overflow_gives_nan_logits(tmp_path: Path) -> None:
    huge = np.full((256, 512), 3e38, np.float32)
    with engine(tiny_llama(tmp_path / "m.gguf", **{"blk.0.ffn_down.weight": huge})) as e:
        assert np.isnan(e.evaluate(tokens(5))).all()


def test_zero_embeddings_give_uniform_logits(tmp_path: Path) -> None:
    silent = {"token_embd.weight": np.zeros((280, 256), np.float32)}
    with engine(tiny_llama(tmp_path / "m.gguf", **silent)) as e:
        assert not e.evaluate(tokens(5)).any()


def test_unsupported_row_length(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", type="F32", n_ff=500)
    with pytest.raises(LocalInferError, match="feed_forward_length"):
        Engine.load(open_gguf(path), Options())


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", **{"blk.1.attn_q.weight": None})
    with pytest.raises(LocalInferError, match=r"blk\.1\.attn_q\.weight"):
        Engine.load(open_gguf(path), Options())


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that interrupts")
def test_progress_within_a_batch(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "SIGNAL_POLL_SECONDS", 0.005)
    with engine(smollm2, ctx_size=512) as e:
        expected = e.evaluate(tokens(400)).copy()
        e.reset()
        observed: list[tuple[str, int, int]] = []
        logits = e.evaluate(tokens(400), lambda *progress: observed.append(progress))
        np.testing.assert_array_equal(logits, expected)
        done = [at for _, at, _ in observed]
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, 400)
        assert any(0 < at < 400 for at in done)
        assert {(stage, total) for stage, _, total in observed} == {("prefill", 400)}


def test_ctrl_c_interrupts_a_batch(smollm2: Path) -> None:
    ids = json.loads((DATA / "logits_smollm2.json").read_text())["tokens"] * 10
    with engine(smollm2, ctx_size=8192, batch_size=512) as e:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        start = time.perf_counter()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(KeyboardInterrupt):
                e.evaluate(ids)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert time.perf_counter() - start <= 0.5 + 0.25
        length = e.n_past
        assert length % 512 == 0
        interrupted = e.evaluate(ids[length : length + 100]).copy()
        e.rewind(0)
        np.testing.assert_array_equal(e.evaluate(ids[: length + 100]), interrupted)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that interrupts")
def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    with engine(tiny_llama(tmp_path / "m.gguf")) as e:
        expected, moments = e.evaluate(tokens(3)).copy(), np.random.default_rng(0)
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for _ in range(2000):
                with contextlib.suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 6e-4))
                    while True:
                        e.rewind(0)
                        e.evaluate(tokens(3))
                e.rewind(0)
                np.testing.assert_array_equal(e.evaluate(tokens(3)), expected)
        finally:
            signal.signal(signal.SIGALRM, before)
