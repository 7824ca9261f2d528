"""Checks converted files: compares the logits of llama.cpp with those of transformers for the checkpoints.

    python tests/benchmarks/checks/conversion.py                 # all reference models
    python tests/benchmarks/checks/conversion.py gemma2 falcon

Files and the KV cache are in F32. The table has the largest difference between two logits and the largest KL divergence
of a position for each reference model, and notes where llama.cpp computes another function. Needs the dependency groups
`test` and `bench`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import checkpoints  # noqa: E402
import reference_models  # noqa: E402
from llama_cpp_engine import Llama  # noqa: E402

KNOWN = {
    "phi3": "llama.cpp sees no window: the first 24 positions count",
    "minimax-m3": "llama.cpp's flash attention has keys and values of dense layers in F16",
    **dict.fromkeys(
        ("qwen4exp", "qwen4exp-wide"),
        "llama.cpp attends to a part of one more run beyond 27 and 35 positions: these count",
    ),
    "deci": "llama.cpp leaves out the attention of layers without a feed-forward network",
    "mellum-narrow": "llama.cpp rotates all layers with the base of those with full attention",
    "plamo3": "llama.cpp's ramp of YaRN lies between whole pairs, the model's does not",
    "plamo2-narrow": "llama.cpp sees no window: the first 24 positions count",
    "smallthinker": "llama.cpp's window is 4,096 tokens: the first 24 positions count",
    "deepseek2": "llama.cpp chooses a group for its two best experts, the model for its best one",
    "phimoe": "llama.cpp's norms are by the mean square, its experts' weights a plain softmax, its amplitude a formula",
    "gpt-oss": "llama.cpp's ramp of YaRN lies between whole pairs, the model's does not",
    "gemma3n-25": "llama.cpp divides by n - 1 for the deviation of a gate",
    **dict.fromkeys(("spark2_5", "spark2_5-narrow"), "llama.cpp takes the tanh of gelu"),
    "t5": "llama.cpp does not scale the input of a tied output layer",
    "t5-gated": "llama.cpp has a table of gelu in F16",
    **dict.fromkeys(("grok", "grok-residual"), "llama.cpp does not cap the router's logits"),
    **dict.fromkeys(
        ("grovemoe", "grovemoe-narrow"), "llama.cpp's adjugate experts get the output of the experts, and other weights"
    ),
    "falcon": "llama.cpp takes the tanh of gelu",
    "falcon-40b": "llama.cpp takes the tanh of gelu",
    "mpt": "llama.cpp takes the tanh of gelu",
    "mpt-clipped": "llama.cpp takes the tanh of gelu",
    "gptneox": "llama.cpp takes the tanh of gelu",
    "gptneox-sequential": "llama.cpp takes the tanh of gelu",
}
# not supported by llama.cpp, or not with these dimensions
UNKNOWN = {"bitnet-b1.58", "ernie4_5-moe-interleaved", "gemma3n", "llama4", "umt5"}
WITHIN = {"phi3": 24, "plamo2-narrow": 24, "smallthinker": 24, "qwen4exp": 27, "qwen4exp-wide": 35}
FLASH = {"minimax-m3", "minimax-m3-wide"}  # whose attention is only sparse with flash attention


def main() -> None:
    print("| model | architecture | largest difference | largest KL | |")
    print("|---|---|---|---|---|")
    for name in sys.argv[1:] or reference_models.NAMES:
        if name in UNKNOWN:
            continue
        reference, logits = reference_models.expected(name), by_llama_cpp(name)
        counted = reference.positions < WITHIN.get(name, len(reference.ids))
        expected, actual = reference.logits[counted], reference.part(logits)[counted]
        difference, kl = np.abs(expected - actual).max(), reference_models.divergence(expected, actual).max()
        print(
            f"| {name} | {reference_models.architecture(name)} | {difference:.1e} | {kl:.1e} | {KNOWN.get(name, '')} |"
        )


def by_llama_cpp(name: str) -> np.ndarray:
    """Return llama.cpp's logits after each token."""
    ids = reference_models.expected(name).ids
    with tempfile.TemporaryDirectory() as folder:
        # llama.cpp derives settings from the model's name, so that the name must be neutral.
        checkpoint = reference_models.checkpoint(name, Path(folder)).rename(Path(folder) / "tiny")
        path = checkpoints.as_f32(checkpoint, Path(folder) / "model.gguf")
        flash_attn = "on" if name in FLASH else "off"
        with Llama(path, threads=1, n_ctx=len(ids), flash_attn=flash_attn, cache="f32") as llama:
            prompt = [~token for token in ids if token < 0]  # of an encoder-decoder model
            if prompt:
                llama.encode(prompt)
            return llama.logits(ids[len(prompt) :]).copy()


if __name__ == "__main__":
    main()
