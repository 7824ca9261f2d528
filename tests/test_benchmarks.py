"""The parts of the benchmarks that run without llama.cpp and other baselines."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import kernels
import numpy as np
import pytest
from locations import PYTHONPATH, TESTS
from random_blocks import NAMES, random_rows

import localinfer
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Field, SourceTensor

BENCHMARKS = TESTS / "benchmarks"
sys.path += PYTHONPATH

import assembly_loops  # noqa: E402
import calibration  # noqa: E402
import dense  # noqa: E402
import dither  # noqa: E402
import gptq_gguf_toolkit  # noqa: E402
import hot_loops  # noqa: E402
import llama_cpp_kernels  # noqa: E402
import llvm_mca  # noqa: E402
import ratios  # noqa: E402
import regress  # noqa: E402
import synthetic  # noqa: E402


@pytest.mark.parametrize("name", NAMES)
def test_random_rows_have_the_requested_size(name: str) -> None:
    rows = random_rows(np.random.default_rng(0), name, 128, 4096, 0.02)
    values = kernels.decode(name, rows)
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(0.02, rel=0.1)


def test_mixed_recipe_matches_llama_quantize() -> None:
    mix = synthetic.RECIPES["Q4_K_M"]
    better = [layer for layer in range(16) if mix.type_of(f"blk.{layer}.ffn_down.weight", 16) == "Q6_K"]
    assert better == [0, 1, 4, 7, 10, 13, 14, 15]
    assert mix.type_of("blk.0.attn_q.weight", 16) == mix.type_of("blk.2.attn_v.weight", 16) == "Q4_K"


def test_synthetic_model_runs(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "model.gguf", "Q4_K_M", n_layer=1, n_vocab=512)
    assert open_gguf(path).tensors["token_embd.weight"].type_name == "Q6_K"
    with localinfer.load(path, ctx_size=64) as model:
        assert np.isfinite(model.logits(model.tokenize("Hello"))).all()


def test_shapes_with_short_rows_have_types_that_fit() -> None:
    types = dict(dense.SHAPES["qwen2.5-0.5b"].types())
    assert types["token_embd.weight"] == "Q8_0"
    assert types["blk.5.attn_q.weight"] == "Q5_0"
    assert types["blk.5.ffn_down.weight"] in ("Q4_K", "Q6_K")  # 4,864 columns
    assert types["blk.0.attn_norm.weight"] == "F32"


def test_page_of_speeds_has_a_table_for_each_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{regress.MARKER}old\n")
    monkeypatch.setattr(regress, "PAGE", page)
    monkeypatch.setattr(regress, "SPEEDS", tmp_path / "speeds.json")
    for cpu, commit, speed in [("AMD", "aaa", 9.0), ("Intel", "bbb", 10.0), ("Intel", "ccc", 11.0)]:
        regress.record(cpu, commit, 2, [regress.Speed("smollm2", "tg48", speed, 1.0, [1.0])])
    head, *sections = page.read_text().split("\n## ")
    assert head.startswith("# Title\n")
    assert [each.splitlines()[0] for each in sections] == ["AMD, 2 threads", "Intel, 2 threads"]
    assert sections[1].splitlines()[2].endswith(" bbb |")
    assert "| smollm2 | tg48 | 11.0 | 10.0 |" in sections[1]


def test_a_slower_test_is_marked() -> None:
    assert regress.Speed("smollm2", "tg48", 9.0, 10.0, [0.9, 0.94, 1.0]).row.endswith("SLOWER")
    assert not regress.Speed("smollm2", "tg48", 9.0, 9.0, [0.9, 0.95, 1.0]).row.endswith("SLOWER")


def test_targets_are_selected_by_words() -> None:
    program = str(BENCHMARKS / "performance_targets.py")
    command = [sys.executable, program, "--list", "prefill gemma ik", "first smollm2"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    assert answer.stdout.splitlines() == [
        "prefill pp512, Gemma 3 270M Q4_K_M, all threads, against ik_llama.cpp: >= 1.3x",
        "start, first run ever, empty kernel cache, SmolLM2 Q4_1: <= 15 s",
    ]


def test_engine_processes_run_interleaved(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path / "model.gguf", "Q4_K_M", n_layer=1, n_vocab=512)
    code = """
import sys
from pathlib import Path
from interleaved import EngineProcess, Setup, Workload, run_interleaved
setup = Setup("localinfer", Path(sys.argv[1]), threads=1, n_ctx=16, options=(("precision", "fast"),))
with EngineProcess(setup) as ours, EngineProcess(setup) as theirs:
    result = run_interleaved(ours, theirs, Workload(2, is_prefill=False, depth=3), 2)
assert len(result.ratios) == 2 and min(result.ours + result.theirs) > 0
try:
    EngineProcess(Setup("localinfer", Path("nowhere"), threads=1, n_ctx=16))
except RuntimeError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(path)]
    answer = subprocess.run(command, cwd=BENCHMARKS, check=True, capture_output=True, text=True)
    assert answer.stdout.strip().endswith("nowhere: no such file")


@pytest.mark.parametrize("name", dither.ONE_BYTES)
def test_dither_moves_weights_by_at_most_half_a_step(name: str) -> None:
    blocks = random_rows(np.random.default_rng(0), name, 8, 2048, 0.02)
    kind = gguf.GGMLQuantizationType[name]
    values = gguf.dequantize(blocks, kind).astype(np.float32)
    tensor = SourceTensor("blk.0.attn_q.weight", values.shape, kind, lambda: blocks.reshape(-1))
    step = dither.quantization_steps(kind, blocks.reshape(-1), values.shape)
    groups, widths = values.reshape(-1, 16), step.reshape(-1, 16)
    codes = (groups - groups[:, :1]) / np.where(widths > 0, widths, 1)
    np.testing.assert_allclose(codes, np.rint(codes), atol=0.01)
    moved = dither.dither(tensor, seed=1).view(np.float32).reshape(values.shape) - values
    steps = moved[step > 0] / step[step > 0]
    assert np.abs(steps).max() <= 0.501
    assert steps.std() == pytest.approx(12**-0.5, rel=0.05)


def test_calibration_texts_are_interleaved() -> None:
    texts = ["a1\n\na2\n\na3", "b1"]
    assert calibration.interleave_texts(texts, size=5) == "a1\n\na2\n\nb1\n\na3\n\n"


def test_error_of_a_ratio_uses_paired_tokens() -> None:
    rng = np.random.default_rng(0)
    b = rng.exponential(size=500)
    a = 0.8 * b * rng.uniform(0.5, 1.5, 500)
    drawn = rng.integers(0, 500, (2000, 500))
    log = ratios.log_ratio(a, b)
    assert log.error == pytest.approx(np.log(a[drawn].mean(axis=1) / b[drawn].mean(axis=1)).std(), rel=0.1)
    assert log.value == np.log(a.mean() / b.mean())
    assert ratios.log_ratio(2 * b, b).error == pytest.approx(0, abs=1e-12)


def test_quality_rows_are_restored_and_compared_with_baselines(tmp_path: Path) -> None:
    key = ratios.Key("model", "Q4_K_M", "localinfer", "", 0, 2, 1)
    weighted = ratios.Key("model", "Q4_K_M", "localinfer+imatrix", "mixed", 4, 2, 1)
    tokens = {"prose": np.array([2.0, 4.0]), "code": np.array([1.0, 1.0])}
    half = {kind: values / 2 for kind, values in tokens.items()}
    actual = [ratios.Row(key, 10, 1.0, 2.0, tokens), ratios.Row(weighted, 11, 1.0, 2.0, half)]
    rows = {row.key: row for row in actual}
    path = tmp_path / "rows.jsonl"
    lines = [ratios.to_json(row, rows) for row in actual]
    path.write_text(f"{lines[0]}\n{lines[0][:100]}")  # the last line is incomplete
    ratios.append_line(path, lines[1])
    assert {row.key: ratios.format_row(row, rows) for row in ratios.read_rows(path)} == {
        key: "| model | 1 | Q4_K_M | localinfer |  | 3 | 1 | 1.732 |  |",
        weighted: "| model | 1 | Q4_K_M | localinfer+imatrix | 4 | 1.5 | 0.5 | 0.866 "
        "| **0.500** ± 0.000 of localinfer (1.100 of the size) |",
    }
    _, bar = ratios.format_targets(rows)
    assert bar == (
        "| with importance to without | 1 | **0.500** | 0.500 ± 0.000 | model Q4_K_M, 4 chunks "
        "| 0.500 ± 0.000 | model Q4_K_M, 4 chunks, prose |"
    )
    for row, divisor in zip(actual, (1, 8), strict=True):  # ratios 1/2 and 1/8 of two seeds have the geometric mean 1/4
        again = replace(row.key, seed=2)
        rows[again] = ratios.Row(again, row.size, 1.0, 2.0, {kind: values / divisor for kind, values in tokens.items()})
    _, bar = ratios.format_targets(rows)
    assert bar == (
        "| with importance to without | 1 | **0.250** | 0.250 ± 0.173 | model Q4_K_M, 4 chunks "
        "| 0.250 ± 0.173 | model Q4_K_M, 4 chunks, prose |"
    )


# Two loops of unknown length around one that runs four times, and a loop that does not multiply.
ASSEMBLY = """
\t.type\tggml_gemv_q8_0_4x4_q8_0,@function
ggml_gemv_q8_0_4x4_q8_0:
\tmov\tx9, x1
.LBB0_1:
\tmov\tx10, x2
.LBB0_2:                                // =>  This Loop Header: Depth=2
\tmov\tx8, #0
\tmovi\tv0.2d, #0000000000000000
.LBB0_3:
\tldr\tq1, [x0], #16
\tsdot\tv0.4s, v1.16b, v2.16b
\tadd\tx8, x8, #16
\tcmp\tx8, #64
\tb.ne\t.LBB0_3
\tsubs\tx10, x10, #1
\tb.ne\t.LBB0_2
\tsubs\tx9, x9, #1
\tb.ne\t.LBB0_1
.LBB0_4:
\tsubs\tx3, x3, #1
\tb.ne\t.LBB0_4
\tret
\t.size\tggml_gemv_q8_0_4x4_q8_0, .Lfunc_end0-ggml_gemv_q8_0_4x4_q8_0
"""


def test_missing_quantizer_of_a_peer_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, gptq_gguf_toolkit.__file__, str(tmp_path), "no-model"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    assert answer.stdout == ""
    assert answer.stderr == f"skipped: {tmp_path} has no quant/gptq/src/quantizer.py\n"


def test_rows_of_a_checkpoint_get_the_order_of_the_file() -> None:
    fields = {
        "general.architecture": Field.text("llama"),
        "llama.attention.head_count": Field.uint32(2),
        "llama.attention.head_count_kv": Field.uint32(1),
    }
    rows = np.arange(8, dtype=np.uint8)[:, None]
    ordered = {
        name: gptq_gguf_toolkit.to_gguf_rows(fields, f"blk.0.{name}.weight", rows)
        for name in ("attn_q", "attn_k", "attn_v")
    }
    assert ordered["attn_q"].reshape(-1).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert ordered["attn_k"].reshape(-1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert ordered["attn_v"] is rows


def test_an_iteration_repeats_inner_loops_as_often_as_they_run() -> None:
    [(name, lines)] = assembly_loops.functions(ASSEMBLY)
    [loop] = hot_loops.hot_loops(name, lines)
    assert loop.products == 4 * 16
    assert [each.name for each in loop.instructions] == [
        "mov", "movi", *["ldr", "sdot", "add", "cmp", "b.ne"] * 4, "subs", "b.ne"
    ]  # fmt: skip
    [outer] = hot_loops.hot_loops(name, lines, inner_trips=3)
    assert outer.products == 3 * loop.products
    assert len(outer.instructions) == 3 * len(loop.instructions) + 3


def test_kernels_of_llama_cpp_are_found_by_name() -> None:
    [(kind, name, loop)] = llama_cpp_kernels.kernel_loops(ASSEMBLY)
    assert (kind, name) == ("gemv", "Q8_0")
    assert llama_cpp_kernels.superblocks(name, loop) == 64 / 256


@pytest.mark.skipif(llvm_mca.find_tool("llvm-mca") is None, reason="llvm-mca is not installed")
def test_cycles_of_a_dependent_chain() -> None:
    chain = [assembly_loops.Instruction("fadd", "v0.4s, v0.4s, v1.4s")]
    assert llvm_mca.cycles(str(llvm_mca.find_tool("llvm-mca")), "apple-m1", chain * 4) >= 4 * 2
