"""The converter on trial: what llama.cpp computes with its files, and transformers with the checkpoints.

    python tests/benchmarks/checks/proving.py                 # all proofs of tests/data/proofs
    python tests/benchmarks/checks/proving.py gemma2 falcon

Files, keys and values are in F32. For each proof the largest difference between two logits, and the largest KL of a
position; where llama.cpp computes another function, that is said. Needs the dependency groups `test` and `bench`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from places import PYTHONPATH

sys.path[:0] = PYTHONPATH

import checkpoints  # noqa: E402
import proofs  # noqa: E402
from peer import Llama  # noqa: E402

KNOWN = {
    "phi3": "llama.cpp sees no window: the first 24 positions count",
    "deepseek2": "llama.cpp chooses a group for its two best experts, the model for its best one",
    "phimoe": "llama.cpp's norms are by the mean square, its experts' weights a plain softmax, its amplitude a formula",
    "gpt-oss": "llama.cpp's ramp of YaRN lies between whole pairs, the model's does not",
    "gemma3n-25": "llama.cpp divides by n - 1 for the deviation of a gate",
    "falcon": "llama.cpp takes the tanh of gelu",
    "falcon-40b": "llama.cpp takes the tanh of gelu",
    "gptneox": "llama.cpp takes the tanh of gelu",
    "gptneox-sequential": "llama.cpp takes the tanh of gelu",
}
UNKNOWN = {"bitnet-b1.58", "gemma3n", "llama4"}  # to llama.cpp, or not with these numbers
WITHIN = {"phi3": 24}


def main() -> None:
    print("| proof | architecture | largest difference | largest KL | |")
    print("|---|---|---|---|---|")
    for name in sys.argv[1:] or proofs.NAMES:
        if name in UNKNOWN:
            continue
        proof, logits = proofs.expected(name), by_llama_cpp(name)
        counted = proof.positions < WITHIN.get(name, len(proof.ids))
        wanted, found = proof.logits[counted], logits[proof.positions[counted]]
        difference, kl = np.abs(wanted - found).max(), proofs.divergence(wanted, found).max()
        print(f"| {name} | {proofs.architecture(name)} | {difference:.1e} | {kl:.1e} | {KNOWN.get(name, '')} |")


def by_llama_cpp(name: str) -> np.ndarray:
    """Logits after each token."""
    ids = proofs.expected(name).ids
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = proofs.checkpoint(name, Path(folder)).rename(Path(folder) / "tiny")  # names mean much to llama.cpp
        path = checkpoints.as_f32(checkpoint, Path(folder) / "model.gguf")
        with Llama(path, threads=1, n_ctx=len(ids), flash_attn="off", cache="f32") as llama:
            return llama.logits(ids).copy()


if __name__ == "__main__":
    main()
