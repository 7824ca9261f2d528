"""Hooks of models with LoRA adapters and control vectors: points have their effects, and prefixes belong to both."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import media_ids
from lora_adapter import lora_adapter
from media_rows import random_rows
from numpy.typing import NDArray
from tiny import tiny_llama, tiny_qwen2

import localinfer
from localinfer import Model, naive
from localinfer.adapters import open_adapters
from localinfer.adapters.control_vector_making import write_control_vector
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.activations.hooks import HookGroup, RowInfo, SequenceHooks
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions

Floats = NDArray[np.floating]
IDS = np.random.default_rng(0).integers(5, 260, 40).tolist()
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
SCALES = {0: 0.5, 1: -2.0}
OTHER_SCALES = {1: 1.5}
QUERIES, LAST = "blk.0.attn_q", "blk.1.resid_post"
DIRECTION = 0.1 * np.random.default_rng(1).standard_normal(256, np.float32)


def half(values: Floats, info: RowInfo | None = None) -> Floats:
    return 0.5 * values + 0.1


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], Path]:
    """Return a model, two adapters of it, and a control vector."""
    folder = tmp_path_factory.mktemp("files")
    adapters = [lora_adapter(folder / f"{seed}.gguf", seed=seed) for seed in (0, 1)]
    write_control_vector(folder / "vector.gguf", {1: DIRECTION}, "llama")
    return tiny_llama(folder / "llama.gguf", n_ctx=2048, type="F32"), adapters, folder / "vector.gguf"


@pytest.fixture(scope="module")
def model(files: tuple[Path, list[Path], Path]) -> Iterator[Model]:
    """Yield the model with the adapters and the control vector. It evaluates prompts in several batches."""
    path, adapters, vector = files
    with localinfer.load(
        path, threads=2, ctx_size=256, batch_size=16, parallel=4, precision="high", cache_type_k="f32",
        cache_type_v="f32", lora=list(map(str, adapters)), control_vector=[str(vector)],
    ) as loaded:  # fmt: skip
        yield loaded


@pytest.mark.parametrize("scales", [SCALES, OTHER_SCALES])
def test_activations_and_patches_agree_with_the_oracle(
    scales: dict[int, float], model: Model, files: tuple[Path, list[Path], Path]
) -> None:
    """A patch receives what the adapter makes of the queries, and what the control vector makes of the stream."""
    path, adapters, _ = files
    oracle = naive.Model(open_gguf(path))
    for number, scale in scales.items():
        opened = open_adapters(open_gguf(path), Options(lora=(str(adapters[number]),)))
        assert opened
        for name, [pair] in opened.pairs.items():
            change = pair.b.astype(np.float64) @ pair.a.astype(np.float64)
            matrix = name.removesuffix(".weight")
            oracle.weights[matrix] = oracle[matrix] + scale * pair.factor * change
    oracle.patches = {QUERIES: half, LAST: lambda values: half(values + DIRECTION)}
    model.set_lora_scales(scales)
    with model.patch({QUERIES: half, LAST: half}), model.capture("*") as trace:
        logits = model.logits(IDS)
    expected = naive.run_builder(oracle, IDS).points | {"logits": naive.forward(oracle, IDS)}
    assert set(trace) == set(model.points())
    for point in trace:
        atol = 1e-4 * max(1.0, np.abs(expected[point]).max())
        np.testing.assert_allclose(trace[point], expected[point], rtol=0, atol=atol, err_msg=point)
    np.testing.assert_array_equal(trace["logits"], logits)
    assert np.abs(model.logits(IDS) - logits).max() > 0.1


def test_captures_do_not_change_bits(model: Model) -> None:
    without, answer = model.logits(IDS).copy(), model.generate(IDS, lora_scales=SCALES, **GREEDY)
    with model.capture(QUERIES, LAST) as trace:
        np.testing.assert_array_equal(model.logits(IDS), without)
        assert model.generate(IDS, lora_scales=SCALES, **GREEDY).tokens == answer.tokens
        assert trace.tokens == [*IDS, *answer.tokens[:-1]]  # although the scales of the sequence have changed
        of_scales = trace[LAST].copy()
        model.generate(IDS, lora_scales=OTHER_SCALES, **GREEDY)
        assert trace.tokens[: len(IDS)] == IDS
        assert np.abs(trace[LAST][: len(IDS)] - of_scales[: len(IDS)]).max() > 0.1


def test_the_prefixes_of_hooks_and_scales_are_apart(model: Model) -> None:
    """Sequences that run side by side, with and without hooks and with several scales, have the bits that they have
    alone."""

    def plain(handle: Model, scales: dict[int, float] = SCALES) -> list[float]:
        result = handle.generate(IDS, lora_scales=scales, logprobs=1, **GREEDY)
        return [each.logprob for each in result.logprobs]

    def patched(handle: Model) -> list[float]:
        with handle.patch({QUERIES: half, "blk.*.ffn_out": half}):
            return plain(handle)

    def captured(handle: Model) -> list[float]:
        with handle.capture(LAST) as trace:
            found = plain(handle, OTHER_SCALES)
            assert trace.tokens[: len(IDS)] == IDS
            assert len(trace.tokens) == len(IDS) + len(found) - 1
            return found

    runs: list[Callable[[Model], list[float]]] = [plain, patched, captured, lambda handle: plain(handle, {0: -1.0})]
    expected = [run(model) for run in runs]
    assert len({each[0] for each in expected}) == len(runs)
    with ThreadPoolExecutor(len(runs)) as threads:
        for _ in range(3):
            handles = [model.concurrent(slot) for slot in range(len(runs))]
            assert list(threads.map(lambda run, handle: run(handle), runs, handles)) == expected
    assert model.concurrent(0).generate(IDS, lora_scales=SCALES, **GREEDY).stats.reused_tokens == len(IDS) - 1
    with model.concurrent(0).capture(LAST):
        assert model.concurrent(0).generate(IDS, lora_scales=SCALES, **GREEDY).stats.reused_tokens == 0


def test_the_logit_lens_has_the_output_of_the_adapters(model: Model) -> None:
    model.set_lora_scales(SCALES)
    lens, logits = model.lens(IDS, top=3), model.logits(IDS)
    np.testing.assert_array_equal(lens.ids[-1], np.argsort(-logits, axis=1, kind="stable")[:, :3])


def test_images_with_adapters_and_hooks(tmp_path: Path) -> None:
    """Rows of an image are those of the embeddings' point, and patches of them have the effect of other rows."""
    adapter = lora_adapter(tmp_path / "adapter.gguf", general_architecture="qwen2")
    f, options = open_gguf(tiny_qwen2(tmp_path / "m.gguf")), Options(threads=1, ctx_size=150, lora=(str(adapter),))
    image, other = random_rows("a", 20, n_positions=5), random_rows("b", 20, n_positions=5)
    seen: list[Floats] = []

    def replace(values: Floats, info: RowInfo) -> Floats:
        seen.append(values.copy())
        values[info.tokens < 0] = other.rows
        return values

    extensions = Extensions(adapters=open_adapters(f, options), media=True)
    with closing(Engine.load(f, options, extensions=extensions)) as engine:
        expected = engine.logits([1, 2, *media_ids(engine, other), 3]).copy()
        engine.set_hooks(SequenceHooks([HookGroup({"token_embd": replace})]))
        np.testing.assert_array_equal(engine.logits([1, 2, *media_ids(engine, image), 3]), expected)
        np.testing.assert_array_equal(seen[0][2:22], image.rows)
