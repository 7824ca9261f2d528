"""Measures what the prefix store costs when nothing is restored: prefill and decode with it and without it, in turns.

    python tests/benchmarks/checks/prefix_store_overhead.py smollm2 qwen2.5-coder-1.5b --rounds 7

Each round evaluates a new prompt of 2,048 tokens and decodes 128 more, with and without the store, which lies in a
temporary directory. The files of a prompt are written while its text is generated. Prints the median ratio of the
times, with its smallest and largest value. Nothing else should run on the machine.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import localinfer  # noqa: E402
from localinfer import paths  # noqa: E402

PROMPT_TOKENS, TEXT_TOKENS = 2048, 128


def seconds(model: localinfer.Model, prompt: Sequence[int]) -> tuple[float, float]:
    """Return the time until the first token, and that of the other tokens."""
    start = perf_counter()
    pieces = model.stream(prompt, n_predict=TEXT_TOKENS, ignore_eos=True, temp=0)
    next(pieces)
    first = perf_counter()
    list(pieces)
    return first - start, perf_counter() - first


def main() -> None:
    """Measure models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", help="files, or names of models")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of runs")
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        for name, directory in ("jit", paths.jit_dir()), ("models", paths.models_dir()):
            (Path(folder) / name).symlink_to(directory)
        os.environ["LOCALINFER_CACHE_DIR"] = folder
        for name in arguments.models:
            with (
                localinfer.load(name, ctx_size=4096, prefix_store=True) as stored,
                localinfer.load(name, ctx_size=4096, prefix_store=False) as plain,
            ):
                ratios = []
                for number in range(arguments.rounds + 1):
                    prompt = random.integers(0, min(stored.n_vocab, 30_000), PROMPT_TOKENS).tolist()
                    models = (stored, plain) if number % 2 else (plain, stored)
                    times = {model: np.array(seconds(model, prompt)) for model in models}
                    ratios.append(times[stored] / times[plain])
                for what, values in zip(("prefill", "decode"), zip(*ratios[1:], strict=True), strict=True):
                    middle = statistics.median(values)
                    print(f"{name:24}{what:8} {middle:.3f}  ({min(values):.3f} to {max(values):.3f})", flush=True)


if __name__ == "__main__":
    main()
