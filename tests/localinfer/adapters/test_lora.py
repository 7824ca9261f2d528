"""LoRA adapters in GGUF: the ops beside the products, and the scales of sequences."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference_models
from engine_helpers import media_ids
from lora_adapter import lora_adapter, random_pairs, write_adapter
from media_rows import enclosed, random_rows
from numpy.typing import NDArray
from tiny import tiny_gemma3, tiny_llama, tiny_qwen3moe

import localinfer
from localinfer import naive, paths
from localinfer.adapters import open_adapters
from localinfer.errors import LocalInferError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime import snapshot
from localinfer.runtime.batch import Segment
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions, build_graph
from localinfer.runtime.modifiers import Modifiers

EXACT: dict[str, Any] = {
    "threads": 2, "ctx_size": 128, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32", "tune": False,
}  # fmt: skip
IDS = list(range(5, 45))
ATTENTION = {
    "blk.0.attn_q.weight": (256, 256), "blk.1.attn_v.weight": (128, 256), "blk.0.attn_output.weight": (256, 256),
}  # fmt: skip
FFN = {"blk.1.ffn_down.weight": (256, 512), "blk.0.ffn_up.weight": (512, 256)}
EXPERTS = {"blk.0.ffn_up_exps.weight": (10, 512, 256), "blk.1.ffn_down_exps.weight": (10, 256, 512)}
ROUTER = {"blk.1.ffn_gate_inp.weight": (10, 256)}
MODELS: Mapping[str, tuple[Callable[..., Path], Mapping[str, tuple[int, ...]]]] = {
    "llama": (tiny_llama, ATTENTION | FFN | {"output.weight": (280, 256), "token_embd.weight": (280, 256)}),
    "qwen3moe": (tiny_qwen3moe, ATTENTION | EXPERTS | ROUTER),
    "gemma3": (tiny_gemma3, ATTENTION | {"token_embd.weight": (280, 256)}),
}


def opened(path: Path, **options: Any) -> "closing[Engine]":
    """Open a model with the adapters of these options."""
    f, chosen = open_gguf(path), Options(**EXACT | options)
    return closing(Engine.load(f, chosen, extensions=Extensions(adapters=open_adapters(f, chosen))))


def oracle(path: Path, **options: Any) -> naive.Model:
    """Return the oracle of a model with the adapters of these options, each with its scale."""
    f = open_gguf(path)
    model, adapters = naive.Model(f), open_adapters(f, Options(**EXACT | options))
    assert adapters is not None
    model.changes = {
        name: [(a.astype(float), b.astype(float), factor * adapters.scales[number]) for number, a, b, factor in pairs]
        for name, pairs in adapters.pairs.items()
    }
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the models in F32, and two adapters of each, of which the second has another rank and float16."""
    folder, made = tmp_path_factory.mktemp("adapters"), {}
    for name, (make, shapes) in MODELS.items():
        model = make(folder / f"{name}.gguf", type="F32")
        n_vocab = open_gguf(model).tensors["token_embd.weight"].shape[0]
        fitting = {each: (n_vocab, *shape[1:]) if shape[0] == 280 else shape for each, shape in shapes.items()}
        made[name] = model
        made[f"{name}-a"] = random_pairs(folder / f"{name}-a.gguf", fitting, architecture=name)
        made[f"{name}-b"] = random_pairs(
            folder / f"{name}-b.gguf", fitting, rank=17, seed=1, alpha=40.0, dtype=np.float16, architecture=name
        )
    return made


@pytest.mark.parametrize("name", MODELS)
def test_logits_agree_with_the_oracle(name: str, files: dict[str, Path]) -> None:
    chosen = {"lora": (str(files[f"{name}-a"]),), "lora_scaled": (f"{files[f'{name}-b']}:-0.5",)}
    with opened(files[name], **chosen) as engine:
        actual = engine.logits(IDS)
    np.testing.assert_allclose(actual, naive.forward(oracle(files[name], **chosen), IDS), rtol=0, atol=1e-3)
    with opened(files[name]) as engine:
        assert np.abs(engine.logits(IDS) - actual).max() > 0.5


def test_adapters_change_the_matrices_for_rows_of_images(tmp_path: Path) -> None:
    """Products of some rows of a batch only have the scales of their tokens."""
    model = checkpoints.as_type(reference_models.checkpoint("cogvlm", tmp_path), tmp_path / "model.gguf", "F32")
    shapes = {"vis_attn_qkv": (288, 96), "vis_up": (160, 96), "attn_output": (96, 96)}
    adapter = random_pairs(
        tmp_path / "adapter.gguf", {f"blk.1.{name}.weight": shape for name, shape in shapes.items()},
        architecture="cogvlm",
    )  # fmt: skip
    image = random_rows("image", 9, 96, n_positions=3, coordinates=enclosed(7))
    expected, options = oracle(model, lora=(str(adapter),)), Options(**EXACT, lora=(str(adapter),))
    expected.media = [image]
    f = open_gguf(model)
    extensions = Extensions(adapters=open_adapters(f, options), media=True)
    with closing(Engine.load(f, options, extensions=extensions)) as engine:
        ids = [*IDS[:7], *media_ids(engine, image), *IDS[7:]]
        actual = engine.logits(ids).copy()
        np.testing.assert_allclose(actual, naive.forward(expected, ids), rtol=0, atol=1e-3)
        engine.use_adapters((0.0,))
        engine.reset()
        assert np.abs(engine.logits(ids) - actual).max() > 0.05


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_sequences_with_different_scales_share_a_batch(name: str, files: dict[str, Path]) -> None:
    """Each has the bits that it has alone, whatever the division into batches."""
    chosen = {"lora": (str(files[f"{name}-a"]), str(files[f"{name}-b"])), "parallel": 3}
    scales = [(0.0, 0.0), (1.0, -0.5), (0.25, 2.0)]
    with opened(files[name], **chosen) as engine:
        runner, alone = engine.runner, []
        sequences = [runner.new_sequence(Modifiers(each)) for each in scales]
        for each in scales:
            engine.use_adapters(each)
            engine.reset()
            alone.append(engine.logits(IDS[:20]).copy())
        rows = np.arange(60, dtype=np.int32)
        ids = np.array(IDS[:20], np.int32)
        together = runner.evaluate_segments([Segment(each, ids) for each in sequences], rows).reshape(3, 20, -1)
        for expected, actual in zip(alone, together, strict=True):
            np.testing.assert_array_equal(actual, expected)
        one_by_one = [runner.evaluate_segments([Segment(each, ids[:1]) for each in sequences], rows[:3]).copy()]
        assert len(np.unique(one_by_one[0], axis=0)) == 3
        for sequence in sequences:
            sequence.reset()


def test_threads_and_batches_change_no_bit(files: dict[str, Path]) -> None:
    chosen = {"lora": (str(files["llama-a"]), str(files["llama-b"]))}
    with opened(files["llama"], **chosen) as engine:
        expected = engine.logits(IDS)
    with opened(files["llama"], **chosen, threads=1) as engine:
        np.testing.assert_array_equal([engine.logits([id])[0] for id in IDS], expected)


@pytest.mark.parametrize(("smallest", "is_half"), [(2.0**-20, True), (2.0**-60, False)])
def test_matrices_in_bfloat16(smallest: float, *, is_half: bool, files: dict[str, Path], tmp_path: Path) -> None:
    """They are computed as float16 if all values can be, with the same bits as in float32."""
    dice, name = np.random.default_rng(2), "blk.0.attn_q.weight"
    tensors = {f"{name}.lora_{side}": bfloat16(dice, shape) for side, shape in {"a": (8, 256), "b": (256, 8)}.items()}
    tensors[f"{name}.lora_a"][3, 5] = smallest
    found = []
    for bf16 in (False, True):
        path = write_adapter(tmp_path / f"{bf16}.gguf", tensors, bf16=bf16, adapter_lora_alpha=8.0)
        with opened(files["llama"], lora=(str(path),)) as engine:
            adapters = engine.compiled_graph.model_graph.adapters
            assert adapters is not None
            found.append((engine.logits(IDS), adapters.pairs[name][0]))
    (expected, in_f32), (actual, in_bf16) = found
    np.testing.assert_array_equal(actual, expected)
    assert (in_bf16.a.dtype == np.float16, in_bf16.b.dtype == np.float16) == (is_half, True)
    products = [pair.factor * (pair.b.astype(float) @ pair.a.astype(float)) for pair in (in_f32, in_bf16)]
    np.testing.assert_array_equal(*products)


def bfloat16(dice: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return random bfloat16 numbers."""
    return (dice.standard_normal(shape, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("type", ["Q8_0", "Q4_K", "BF16"])
def test_quantized_weights(type: str, files: dict[str, Path], tmp_path: Path) -> None:
    model, chosen = tiny_llama(tmp_path / "m.gguf", type=type), {"lora": (str(files["llama-a"]),)}
    with opened(model, **chosen) as engine:
        np.testing.assert_allclose(engine.logits(IDS), naive.forward(oracle(model, **chosen), IDS), rtol=0, atol=0.05)


def test_a_scale_of_zero_gives_the_bits_of_the_model(files: dict[str, Path]) -> None:
    with opened(files["llama"]) as engine:
        expected = engine.logits(IDS)
    path = str(files["llama-a"])
    for zero in ({"lora_scaled": (f"{path}:0",)}, {"lora": (path,), "lora_init_without_apply": True}):
        with opened(files["llama"], **zero) as engine:
            np.testing.assert_array_equal(engine.logits(IDS), expected)


def test_without_adapters_the_graph_has_no_further_ops(files: dict[str, Path]) -> None:
    f = open_gguf(files["llama"])
    plain, options = build_graph(f, Options()), Options(lora=(str(files["llama-a"]),))
    names = [op.name for op in plain.graph.ops]
    assert not any("lora" in name for name in names)
    assert plain.adapter_scales.nbytes == 0
    adapted = build_graph(f, options, Extensions(adapters=open_adapters(f, options)))
    added = [op.name for op in adapted.graph.ops]
    assert [name for name in added if "lora" not in name] == names


def test_snapshots_belong_to_the_scales(files: dict[str, Path], tmp_path: Path) -> None:
    chosen = Options(**EXACT, lora=(str(files["llama-a"]),))
    with opened(files["llama"], **asdict(chosen)) as engine:
        engine.evaluate(IDS)
        snapshot.save(tmp_path / "one", engine, chosen)
        assert snapshot.load(tmp_path / "one", engine, chosen) == len(IDS)
    for other in ({"lora": (str(files["llama-b"]),)}, {"lora_scaled": (f"{files['llama-a']}:0.5",)}, {}):
        with opened(files["llama"], **other) as engine, pytest.raises(LocalInferError, match="other adapters"):
            snapshot.load(tmp_path / "one", engine, Options(**EXACT | other))


def test_a_run_sets_other_scales(files: dict[str, Path]) -> None:
    with localinfer.load(files["llama"], lora=str(files["llama-a"]), threads=2, ctx_size=128, tune=False) as model:
        assert (list(model.lora_adapters), model.lora_scales) == ([files["llama-a"]], (1.0,))
        run = {"n_predict": 8, "temp": 0.0, "ignore_eos": True}
        texts = [model.generate("Hello", **run, lora_scales={0: scale}).text for scale in (0.0, 1.0, 0.5)]  # type: ignore[call-overload]
        assert len(set(texts)) == 3
        assert model.generate("Hello", **run).text == texts[1]  # type: ignore[call-overload]
        model.set_lora_scales({0: 0.5})
        assert model.generate("Hello", **run).text == texts[2]  # type: ignore[call-overload]
        model.set_lora_scales({})
        assert model.generate("Hello", **run).text == texts[0]  # type: ignore[call-overload]
        for wrong in ({1: 1.0}, {0: float("nan")}):
            with pytest.raises(localinfer.UsageError, match="lora_scales"):
                model.set_lora_scales(wrong)
            with pytest.raises(localinfer.UsageError, match="lora_scales"):
                model.generate("Hello", lora_scales=wrong)


def test_embeddings_do_not_depend_on_the_last_run(files: dict[str, Path]) -> None:
    chosen = {"lora": str(files["llama-a"]), "threads": 2, "ctx_size": 128, "tune": False}
    with localinfer.load(files["llama"], **chosen) as model:  # type: ignore[arg-type]
        expected = model.embed(["Hello"])
        model.generate("Hello", n_predict=2, lora_scales={0: -1.0})
        np.testing.assert_array_equal(model.embed(["Hello"]), expected)


def test_the_prefix_store_tells_scales_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "prefixes_dir", lambda: tmp_path / "prefixes")
    prompt = [7, 8, 9, 10, 11] * 120
    one, path = lora_adapter(tmp_path / "one.gguf"), tiny_llama(tmp_path / "m.gguf", n_ctx=1024)

    def reused(**options: Any) -> int:
        with localinfer.load(path, threads=2, tune=False, prefix_store=True, **options) as model:
            return model.generate(prompt, n_predict=1).stats.reused_tokens

    assert reused(lora=str(one)) == 0
    assert reused(lora=str(one)) > 500
    assert reused(lora_scaled=f"{one}:0.5") == 0
    assert reused() == 0
    assert reused(lora=str(lora_adapter(tmp_path / "one.gguf", seed=1))) == 0
