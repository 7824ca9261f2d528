"""The benchmarks as far as they can be tried without the peers: files that load, rows that are named."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from random_blocks import NAMES, random_blocks

import localinfer
from localinfer.files.gguf import open_gguf

BENCHMARKS = Path(__file__).parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

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
