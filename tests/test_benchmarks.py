"""The benchmarks as far as they can be tried without the peers: files that load, rows that are named."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from places import PYTHONPATH, TESTS
from random_blocks import NAMES, random_blocks

import localinfer
from localinfer.files.gguf import open_gguf
from localinfer.files.source import SourceTensor

BENCHMARKS = TESTS / "benchmarks"
sys.path += PYTHONPATH

import calibration  # noqa: E402
import dither  # noqa: E402
import ratios  # noqa: E402
import synthetic  # noqa: E402


@pytest.mark.parametrize("name", NAMES)
def test_random_blocks_have_the_size_that_was_asked_for(name: str) -> None:
    blocks = random_blocks(np.random.default_rng(0), name, 2048, 0.02)
    values = gguf.dequantize(blocks.reshape(1, -1), gguf.GGMLQuantizationType[name])
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(0.02, rel=0.1)


def test_a_mix_spends_more_on_the_layers_that_llama_quantize_chooses() -> None:
    mix = synthetic.RECIPES["Q4_K_M"]
    better = [layer for layer in range(16) if mix.type_of(f"blk.{layer}.ffn_down.weight", 16) == "Q6_K"]
    assert better == [0, 1, 4, 7, 10, 13, 14, 15]
    assert mix.type_of("blk.0.attn_q.weight", 16) == mix.type_of("blk.2.attn_v.weight", 16) == "Q4_K"


def test_a_synthetic_model_runs(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "model.gguf", "Q4_K_M", n_layer=1, n_vocab=512)
    assert open_gguf(path).tensors["token_embd.weight"].type_name == "Q6_K"
    with localinfer.load(path, ctx_size=64) as model:
        assert np.isfinite(model.logits(model.tokenize("Hello"))).all()


def test_bars_are_selected_by_words() -> None:
    command = [sys.executable, str(BENCHMARKS / "bars.py"), "--list", "prefill gemma ik", "first smollm2"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    assert answer.stdout.splitlines() == [
        "prefill pp512, Gemma 3 270M Q4_K_M, all threads, against ik_llama.cpp: >= 1.3x",
        "start, first run ever, empty kernel cache, SmolLM2 Q4_1: <= 15 s",
    ]


def test_contestants_take_turns_in_processes_of_their_own(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "model.gguf", "Q4_K_M", n_layer=1, n_vocab=512)
    code = """
import sys
from pathlib import Path
from contest import Contestant, Setup, Test, take_turns
setup = Setup("localinfer", Path(sys.argv[1]), threads=1, n_ctx=16, options=(("precision", "fast"),))
with Contestant(setup) as ours, Contestant(setup) as theirs:
    result = take_turns(ours, theirs, Test(2, at_once=False, depth=3), 2)
assert len(result.ratios) == 2 and min(result.ours + result.theirs) > 0
try:
    Contestant(Setup("localinfer", Path("nowhere"), threads=1, n_ctx=16))
except RuntimeError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(path)]
    answer = subprocess.run(command, cwd=BENCHMARKS, check=True, capture_output=True, text=True)
    assert answer.stdout.strip().endswith("nowhere: no such file")


@pytest.mark.parametrize("name", dither.ONES)
def test_dithered_weights_stay_within_half_a_step(name: str) -> None:
    blocks = random_blocks(np.random.default_rng(0), name, 64, 0.02).reshape(8, -1)
    kind = gguf.GGMLQuantizationType[name]
    values = gguf.dequantize(blocks, kind).astype(np.float32)
    tensor = SourceTensor("blk.0.attn_q.weight", values.shape, kind, lambda: blocks.reshape(-1))
    step = dither.steps(kind, blocks.reshape(-1), values.shape)
    groups, widths = values.reshape(-1, 16), step.reshape(-1, 16)
    codes = (groups - groups[:, :1]) / np.where(widths > 0, widths, 1)
    np.testing.assert_allclose(codes, np.rint(codes), atol=0.01)
    moved = dither.dither(tensor, seed=1).view(np.float32).reshape(values.shape) - values
    part = moved[step > 0] / step[step > 0]
    assert np.abs(part).max() <= 0.501
    assert part.std() == pytest.approx(12**-0.5, rel=0.05)


def test_calibrating_texts_take_turns() -> None:
    texts = ["a1\n\na2\n\na3", "b1"]
    assert calibration.in_turn(texts, size=5) == "a1\n\na2\n\nb1\n\na3\n\n"


def test_the_error_of_a_ratio_is_that_of_tokens_side_by_side() -> None:
    rng = np.random.default_rng(0)
    b = rng.exponential(size=500)
    a = 0.8 * b * rng.uniform(0.5, 1.5, 500)
    drawn = rng.integers(0, 500, (2000, 500))
    log = ratios.log_ratio(a, b)
    assert log.error == pytest.approx(np.log(a[drawn].mean(axis=1) / b[drawn].mean(axis=1)).std(), rel=0.1)
    assert log.value == np.log(a.mean() / b.mean())
    assert ratios.log_ratio(2 * b, b).error == pytest.approx(0, abs=1e-12)


def test_rows_of_quality_are_read_again_and_know_their_rivals(tmp_path: Path) -> None:
    key = ratios.Key("model", "Q4_K_M", "localinfer", "", 0, 2, 1)
    weighted = ratios.Key("model", "Q4_K_M", "localinfer+imatrix", "mixed", 4, 2, 1)
    tokens = {"prose": np.array([2.0, 4.0]), "code": np.array([1.0, 1.0])}
    half = {kind: values / 2 for kind, values in tokens.items()}
    found = [ratios.Row(key, 10, 1.0, 2.0, tokens), ratios.Row(weighted, 11, 1.0, 2.0, half)]
    rows = {row.key: row for row in found}
    path = tmp_path / "rows.jsonl"
    lines = [ratios.as_json(row, rows) for row in found]
    path.write_text(f"{lines[0]}\n{lines[0][:100]}")  # the last one was cut off
    ratios.append(path, lines[1])
    assert {row.key: ratios.line(row, rows) for row in ratios.read(path)} == {
        key: "| model | 1 | Q4_K_M | localinfer |  | 3 | 1 | 1.732 |  |",
        weighted: "| model | 1 | Q4_K_M | localinfer+imatrix | 4 | 1.5 | 0.5 | 0.866 "
        "| **0.500** ± 0.000 of localinfer (1.100 of the size) |",
    }
    _, bar = ratios.bars(rows)
    assert bar == (
        "| with importance to without | 1 | **0.500** | 0.500 ± 0.000 | model Q4_K_M, 4 chunks "
        "| 0.500 ± 0.000 | model Q4_K_M, 4 chunks, prose |"
    )
    for row, part in zip(found, (1, 8), strict=True):  # a ratio of 1/8 with other noise: 1/4 in the middle
        again = replace(row.key, seed=2)
        rows[again] = ratios.Row(again, row.size, 1.0, 2.0, {kind: values / part for kind, values in tokens.items()})
    _, bar = ratios.bars(rows)
    assert bar == (
        "| with importance to without | 1 | **0.250** | 0.250 ± 0.173 | model Q4_K_M, 4 chunks "
        "| 0.250 ± 0.173 | model Q4_K_M, 4 chunks, prose |"
    )
