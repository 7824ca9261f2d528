"""Every architecture computes what `transformers` computes: logits of converted tiny checkpoints (reference_models.py).

The oracle (naive.py) implements the operations of a builder in numpy, the engine with kernels.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models
from numpy.typing import NDArray

from localinfer import naive
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine

EXACT = Options(ctx_size=128, threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")
FAST = Options(ctx_size=128, threads=1)
# Together they use all operations of a builder; the first two tests cover the other architectures.
DIFFERENT = [
    "arwkv7-plain", "bailingmoe3-narrow", "cohere2moe", "command-r-plus", "deci", "deepseek2", "deepseek3",
    "deepseek32", "deepseek4", "deepseek4-runs", "dots1", "exaone4-windows", "falcon-40b", "falcon-h1", "falcon-mamba",
    "gemma2", "gemma3n", "gemma4", "gemma4-dense", "gemma4-experts", "glm-dsa-shared", "glm5-next", "gpt-oss", "gpt2",
    "granitehybrid", "granitehybrid-experts", "granitemoe-swa", "graniteswitch-narrow", "hunyuan", "hy_v4-wide",
    "kimi-k3-wide", "kimi-linear-wide", "kolibri1-normed", "lfm2", "llama4", "mamba", "mamba2", "minicpm3-long",
    "minimax-m3", "ministral3", "mistral4", "mpt-clipped", "nemotron", "nemotron_h", "nemotron_h_moe",
    "nemotron_h_moe-latent", "olmo", "olmo3", "phi2", "phi3-long", "phimoe", "plamo2-narrow", "qwen2moe", "qwen35",
    "qwen3moe", "qwen3next", "qwen4exp", "rwkv6", "rwkv6qwen2", "rwkv7", "stablelm",
]  # fmt: skip
# gpt2 has a limited number of learned positions; the others forget no runs of positions.
ENDLESS = [
    name for name in DIFFERENT if name not in ("deepseek4", "deepseek4-runs", "glm5-next", "gpt2", "qwen4exp")
]
# Mean KL divergence from F32 weights to Q8_0 weights at the positions MEASURED: of exact arithmetic, of llama.cpp
# (0.3.36), and the limit for us with precision `fast`. A random router can have two experts so close that 8-bit
# rounding changes its choice: a third of granitehybrid-experts' mean is one position of 32. Mamba's decays are
# exponentials of its activations. Rounding also changes which positions an indexer chooses.
SENSITIVE = {
    "bailingmoe3-narrow": (2.2e-3, 2.5e-3, 4e-3),
    "deepseek32": (2.5e-2, 2.8e-2, 4e-2),
    "deepseek4-runs": (8.4e-4, None, 4e-3),  # llama.cpp has no runs of 12 positions
    "glm-dsa-shared": (2.6e-2, 3.6e-2, 5e-2),
    "glm5-next": (1.0e-2, 1.0e-2, 2e-2),
    "granitehybrid-experts": (1.0e-3, 2.0e-3, 2e-3),
    "hy_v4-wide": (4.3e-2, 6.0e-2, 5e-2),
    "kimi-k3-wide": (5.6e-3, 1.6e-3, 8e-3),
    "mamba": (1.5e-3, 2.8e-3, 4e-3),
    "minimax-m3": (1.3e-3, 2.6e-4, 2e-3),
    "phimoe": (3.7e-3, None, 1e-2),  # llama.cpp computes other expert weights: also 0.18 in F32
    "qwen3next": (6.7e-3, 1.5e-2, 1e-2),
}
SMALL_BATCHES = {"deepseek4": 1e-2}  # likewise: largest KL divergence of a batch size whose sums have another order
TIED = ["phimoe"]  # two experts are so close that 15 bits and exact arithmetic choose differently
MEASURED = np.arange(2, 96, 3)
ROTATED = "deepseek2-ocr.rope.dimension_count"
File = Callable[[str, str], Path]
Exact = Callable[[str], NDArray[np.float32]]

each = pytest.mark.parametrize("name", reference_models.NAMES)
different = pytest.mark.parametrize("name", DIFFERENT)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> File:
    """Return the GGUF file of a reference model in a type, created once."""
    folder = tmp_path_factory.mktemp("models")

    def made(name: str, type: str) -> Path:
        path = folder / f"{name}-{type}.gguf"
        if not path.exists():
            checkpoint = folder / name
            checkpoints.as_type(
                checkpoint if checkpoint.exists() else reference_models.checkpoint(name, folder), path, type
            )
        return path

    return made


@pytest.fixture(scope="module")
def exact(file: File) -> Exact:
    """Return the oracle's logits at all positions of a reference model's text, computed once."""
    computed: dict[str, NDArray[np.float32]] = {}

    def made(name: str) -> NDArray[np.float32]:
        if name not in computed:
            model = naive.Model(open_gguf(file(name, "F32")))
            model.ctx_size = EXACT.ctx_size
            computed[name] = naive.forward(model, reference_models.expected(name).ids).astype(np.float32)
        return computed[name]

    return made


def mean_divergence(expected: NDArray[np.float32], actual: NDArray[np.float32]) -> float:
    return float(reference_models.divergence(expected[MEASURED], actual[MEASURED]).mean())


@contextlib.contextmanager
def engine(path: Path, options: Options) -> Iterator[Engine]:
    with contextlib.closing(Engine.load(open_gguf(path), options)) as running:
        yield running


@each
def test_the_oracle_agrees_with_transformers(name: str, exact: Exact) -> None:
    reference = reference_models.expected(name)
    np.testing.assert_allclose(reference.part(exact(name)), reference.logits, rtol=0, atol=1e-4)


@each
def test_logits_agree_with_transformers(name: str, file: File) -> None:
    reference = reference_models.expected(name)
    with engine(file(name, "F32"), EXACT) as running:
        actual = reference.part(running.logits(reference.ids))
    np.testing.assert_allclose(actual, reference.logits, rtol=0, atol=1e-3)
    assert reference_models.divergence(reference.logits, actual).max() <= 1e-6


def test_deepseek_ocr_rotates_whole_heads_where_files_say_0(file: File) -> None:
    reference, f, key = reference_models.expected("deepseek2-ocr"), open_gguf(file("deepseek2-ocr", "F32")), ROTATED
    as_published = naive.forward(naive.Model(replace(f, metadata={**f.metadata, key: 0})), reference.ids)
    np.testing.assert_allclose(reference.part(as_published), reference.logits, rtol=0, atol=1e-4)
    with pytest.raises(LocalInferError, match="is 16; it must be 0 or 32"):
        naive.forward(naive.Model(replace(f, metadata={**f.metadata, key: 16})), reference.ids)


def test_mamba_layers_of_plamo2_may_have_no_heads_of_queries(file: File) -> None:
    """llama.cpp's converter writes such files."""
    reference, f = reference_models.expected("plamo2"), open_gguf(file("plamo2", "F32"))
    heads = {"plamo2.attention.head_count": np.array([0, 6], np.int32)}
    with contextlib.closing(Engine.load(replace(f, metadata={**f.metadata, **heads}), EXACT)) as running:
        actual = reference.part(running.logits(reference.ids))
    np.testing.assert_allclose(actual, reference.logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "key", "value", "problem"),
    [
        ("minimax-m3", "block_size", 8, "8, which is below 16, is not supported"),
        ("minimax-m3", "local_blocks", 4, "at most 3 blocks are chosen"),
        ("glm5-next", "kpool", 1, "is 1; it must be 2 to 65536"),
        ("glm5-next", "top_k", 15, "is 15; it must be a multiple of 4, the positions of a run"),
        ("glm5-next", "kpool_select_tail", False, "false is not supported"),
        ("glm5-next", "types", np.zeros(3, bool), "is false for layer 1, which has no layer with attention before it"),
    ],
)
def test_indexers_are_checked(name: str, key: str, value: object, problem: str, file: File) -> None:
    f, whole_key = open_gguf(file(name, "F32")), f"{name}.attention.indexer.{key}"
    with pytest.raises(LocalInferError, match=problem):
        naive.forward(naive.Model(replace(f, metadata={**f.metadata, whole_key: value})), [1])


@pytest.mark.parametrize("name", ["afmoe", "llama4", "muse-glimmer"])
def test_files_without_the_window_that_the_architecture_has_are_refused(name: str, file: File) -> None:
    f, key = open_gguf(file(name, "F32")), f"{name}.attention.sliding_window"
    with pytest.raises(UnsupportedError, match=r"attention\.sliding_window: 0 is not supported"):
        naive.forward(naive.Model(replace(f, metadata={**f.metadata, key: 0})), [1])


def with_limits(f: GGUF, limit: float) -> GGUF:
    return replace(f, metadata={**f.metadata, "maple.swiglu_clamp_exp": np.full(4, limit, np.float32)})


@pytest.mark.parametrize("limit", [-1.0, np.inf])
def test_limits_of_gates_are_finite(limit: float, file: File) -> None:
    with pytest.raises(LocalInferError, match="swiglu_clamp_exp: must be finite numbers, none below 0"):
        naive.forward(naive.Model(with_limits(open_gguf(file("maple", "F32")), limit)), [1])


@pytest.mark.parametrize(("limit", "changes"), [(7.0, False), (0.125, True)])
def test_gates_of_experts_may_be_limited(limit: float, changes: bool, file: File, exact: Exact) -> None:
    f, ids = open_gguf(file("maple", "F32")), reference_models.expected("maple").ids
    limited = with_limits(f, limit)
    expected = naive.forward(naive.Model(limited), ids)
    assert (np.abs(expected - exact("maple")).max() > 0.01) == changes
    with contextlib.closing(Engine.load(limited, EXACT)) as running:
        np.testing.assert_allclose(running.logits(ids), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["gpt2", "phi2"])  # without RoPE and with fused QKV; with partial RoPE
def test_keys_with_a_bias_have_anchors(name: str, file: File) -> None:
    reference = reference_models.expected(name)
    with engine(file(name, "F32"), replace(EXACT, cache_type_k="q8_0")) as running:
        assert all(cache.anchored for cache in running.compiled_graph.model_graph.attention.caches.values())
        actual = reference.part(running.logits(reference.ids))
    np.testing.assert_allclose(actual, reference.logits, rtol=0, atol=0.05)


@pytest.mark.parametrize("name", [name for name in DIFFERENT if name not in TIED])
def test_quantized_logits_agree_with_the_oracle(name: str, file: File, exact: Exact) -> None:
    """Engine and exact arithmetic agree on the same 8-bit weights."""
    reference, path = reference_models.expected(name), file(name, "Q8_0")
    model = naive.Model(open_gguf(path))
    model.ctx_size = EXACT.ctx_size
    with engine(path, EXACT) as running:
        actual = running.logits(reference.ids)
    assert reference_models.divergence(naive.forward(model, reference.ids), actual).max() <= 5e-6
    if name not in SENSITIVE:
        assert mean_divergence(exact(name), actual) <= 1e-3


@different
def test_the_quantization_error_is_small(name: str, file: File, exact: Exact) -> None:
    """The error of 8-bit weights and 8-bit activations is small."""
    with engine(file(name, "Q8_0"), FAST) as running:
        actual = running.logits(reference_models.expected(name).ids)
    maximum = SENSITIVE[name][-1] if name in SENSITIVE else 2e-3
    assert mean_divergence(exact(name), actual) <= maximum


@different
@pytest.mark.parametrize(("options", "maximum"), [(EXACT, 1e-6), (FAST, 1e-3)], ids=["exact", "fast"])
def test_batching_does_not_change_bits(name: str, options: Options, maximum: float, file: File) -> None:
    """One batch, several batches, single tokens and a reused prefix give the same bits.

    An engine with a smaller batch size has smaller ring buffers, so its sums have another order.
    """
    ids = reference_models.expected(name).ids
    path = file(name, "Q8_0")
    with engine(path, options) as running:
        whole = running.logits(ids)
        running.reset()
        chunked = np.concatenate([running.logits(ids[first : first + 7]) for first in range(0, len(ids), 7)])
        running.reset()
        one_by_one = np.concatenate([running.logits([id]) for id in ids])
        length = running.rewind(60)
        assert length in (0, 60)
        again = running.logits(ids[length:])
        running.reset()
        running.evaluate(ids[:67], rewindable_suffix=7)
        assert running.rewind(65) == (65 if running.sequence.can_rewind else 60)
        returned = running.logits(ids[running.n_past :])
    with engine(path, replace(options, batch_size=7)) as running:
        small = running.logits(ids)
    np.testing.assert_array_equal(one_by_one, whole)
    np.testing.assert_array_equal(again, whole[length:])
    np.testing.assert_array_equal(returned, whole[len(whole) - len(returned) :])
    np.testing.assert_array_equal(chunked, whole)
    maximum = SMALL_BATCHES.get(name, maximum) if options is FAST else maximum
    assert reference_models.divergence(whole, small).max() <= maximum


@pytest.mark.parametrize("name", ENDLESS)
def test_positions_beyond_the_ring_buffer(name: str, file: File) -> None:
    """With a ring buffer of 40 tokens, logits stay finite and reproducible."""
    ids = reference_models.expected(name).ids
    with engine(file(name, "Q8_0"), replace(FAST, ctx_size=40, ctx_policy="ring")) as running:
        first = np.stack([running.evaluate([id]).copy() for id in ids])
        running.reset()
        second = np.stack([running.evaluate([id]).copy() for id in ids])
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, second)
