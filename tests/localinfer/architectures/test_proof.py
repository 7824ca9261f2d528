"""Every architecture computes what `transformers` computes: tiny checkpoints, converted, and its logits (proofs.py).

The oracle computes the same words with numpy (naive.py), the engine with kernels.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import checkpoints
import naive
import numpy as np
import proofs
import pytest

from localinfer.engine.engine import Engine
from localinfer.files.gguf import open_gguf
from localinfer.options import Options

EXACT = Options(ctx_size=128, threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")
FAST = Options(ctx_size=128, threads=1)
# Between them they have every word of the recorder: the others differ in data that the first two tests see.
DIFFERENT = [
    "command-r-plus", "deepseek2", "deepseek3", "dots1", "exaone4-windows", "falcon-40b", "falcon-h1", "falcon-mamba",
    "gemma2", "gemma3n", "gemma4", "gemma4-dense", "gemma4-experts", "gpt-oss", "gpt2", "granitehybrid",
    "granitehybrid-experts", "hunyuan", "lfm2", "llama4", "mamba", "mamba2", "ministral3", "mistral4", "nemotron",
    "nemotron_h", "nemotron_h_moe", "nemotron_h_moe-latent", "olmo3", "phi2", "phi3-long", "phimoe", "qwen2moe",
    "qwen35", "qwen3moe", "qwen3next", "rwkv7", "stablelm",
]  # fmt: skip
ENDLESS = [name for name in DIFFERENT if name != "gpt2"]  # whose learned positions end
# Mean KL to transformers with weights in Q8_0: of exact arithmetic on them, of llama.cpp (0.3.36), and the most that we
# may have in `fast`. A random router may have two experts so near each other for a token that eight bits change its
# choice: a third of granitehybrid-experts' mean is one position of 32. Mamba's decays are exponentials of what its
# weights make.
SENSITIVE = {
    "granitehybrid-experts": (1.0e-3, 2.0e-3, 2e-3),
    "mamba": (1.5e-3, 2.8e-3, 4e-3),
    "phimoe": (3.7e-3, None, 1e-2),  # llama.cpp weighs its experts in another way: 0.18 in F32, too
    "qwen3next": (6.7e-3, 1.5e-2, 1e-2),
}
TIED = ["phimoe"]  # two experts are so near each other that 15 bits decide otherwise than exact arithmetic does
File = Callable[[str, str], Path]

each = pytest.mark.parametrize("name", proofs.NAMES)
different = pytest.mark.parametrize("name", DIFFERENT)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> File:
    """A proof's GGUF file, in a type, made once."""
    folder = tmp_path_factory.mktemp("proofs")

    def made(name: str, type: str) -> Path:
        path = folder / f"{name}-{type}.gguf"
        if not path.exists():
            checkpoint = folder / name
            checkpoints.as_type(checkpoint if checkpoint.exists() else proofs.checkpoint(name, folder), path, type)
        return path

    return made


@contextlib.contextmanager
def engine(path: Path, options: Options) -> Iterator[Engine]:
    with contextlib.closing(Engine(open_gguf(path), options)) as running:
        yield running


@each
def test_the_oracle_agrees_with_transformers(name: str, file: File) -> None:
    proof, model = proofs.expected(name), naive.Model(open_gguf(file(name, "F32")))
    model.ctx_size = EXACT.ctx_size
    found = naive.forward(model, proof.ids)[proof.positions]
    np.testing.assert_allclose(found, proof.logits, rtol=0, atol=1e-4)


@each
def test_logits_are_those_of_transformers(name: str, file: File) -> None:
    proof = proofs.expected(name)
    with engine(file(name, "F32"), EXACT) as running:
        found = running.logits(proof.ids)[proof.positions]
    np.testing.assert_allclose(found, proof.logits, rtol=0, atol=1e-3)
    assert proofs.divergence(proof.logits, found).max() <= 1e-6


@pytest.mark.parametrize("name", ["gpt2", "phi2"])  # without a rope and from one matrix; with half of a head turned
def test_keys_with_a_bias_have_anchors(name: str, file: File) -> None:
    proof = proofs.expected(name)
    with engine(file(name, "F32"), replace(EXACT, cache_type_k="q8_0")) as running:
        assert all(cache.anchored for cache in running.program.recorder.attention.caches.values())
        found = running.logits(proof.ids)[proof.positions]
    np.testing.assert_allclose(found, proof.logits, rtol=0, atol=0.05)


@pytest.mark.parametrize("name", [name for name in DIFFERENT if name not in TIED])
def test_quantized_they_are_what_their_weights_say(name: str, file: File) -> None:
    """Exact arithmetic on weights in eight bits: what these cost is not ours."""
    proof, path = proofs.expected(name), file(name, "Q8_0")
    model = naive.Model(open_gguf(path))
    model.ctx_size = EXACT.ctx_size
    with engine(path, EXACT) as running:
        found = running.logits(proof.ids)
    assert proofs.divergence(naive.forward(model, proof.ids), found).max() <= 5e-6


@different
def test_quantized_they_differ_little(name: str, file: File) -> None:
    """By what weights in eight bits cost, and activations in eight bits."""
    proof = proofs.expected(name)
    with engine(file(name, "Q8_0"), FAST) as running:
        found = running.logits(proof.ids)[proof.positions]
    most = SENSITIVE[name][-1] if name in SENSITIVE else 2e-3
    assert proofs.divergence(proof.logits, found).mean() <= most


@different
@pytest.mark.parametrize(("options", "most"), [(EXACT, 1e-6), (FAST, 1e-3)], ids=["exact", "fast"])
def test_the_way_does_not_matter(name: str, options: Options, most: float, file: File) -> None:
    """In one batch, in parts, one by one, and behind a prefix that was there already: the same bits.

    Where an engine is made for smaller batches, rings are smaller, and sums have another order.
    """
    ids = proofs.expected(name).ids
    path = file(name, "Q8_0")
    with engine(path, options) as running:
        whole = running.logits(ids)
        running.reset()
        in_parts = np.concatenate([running.logits(ids[first : first + 7]) for first in range(0, len(ids), 7)])
        running.reset()
        one_by_one = np.concatenate([running.logits([id]) for id in ids])
        kept = running.rewind(60)
        assert kept in (0, 60)
        again = running.logits(ids[kept:])
        running.reset()
        running.evaluate(ids[:67], keep=7)
        assert running.rewind(65) == (65 if running.sequence.rewinds else 60)
        returned = running.logits(ids[running.n_past :])
    with engine(path, replace(options, batch_size=7)) as running:
        small = running.logits(ids)
    np.testing.assert_array_equal(one_by_one, whole)
    np.testing.assert_array_equal(again, whole[kept:])
    np.testing.assert_array_equal(returned, whole[len(whole) - len(returned) :])
    np.testing.assert_array_equal(in_parts, whole)
    assert proofs.divergence(whole, small).max() <= most


@pytest.mark.parametrize("name", ENDLESS)
def test_past_the_window_and_past_the_ring(name: str, file: File) -> None:
    """A ring of 40 tokens forgets the oldest: logits are numbers still, and the same again."""
    ids = proofs.expected(name).ids
    with engine(file(name, "Q8_0"), replace(FAST, ctx_size=40, ctx_policy="ring")) as running:
        first = np.stack([running.evaluate([id]).copy() for id in ids])
        running.reset()
        second = np.stack([running.evaluate([id]).copy() for id in ids])
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, second)
