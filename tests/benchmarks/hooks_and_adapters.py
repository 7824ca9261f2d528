"""Measures decode speed with a captured residual stream, and with a LoRA adapter of all matrices.

    python tests/benchmarks/hooks_and_adapters.py smollm2 gemma3-270m qwen2.5-coder-1.5b
    python tests/benchmarks/hooks_and_adapters.py smollm2 --rank 64 --type f32 --rounds 9

Runs without and with are interleaved, with greedy sampling of random prompts' continuations. The ratio is the median
over adjacent runs. Targets: with the residual stream after one layer captured, at least 0.95 times as fast; with an
adapter of rank 16, at least 0.9 times. Prints a Markdown table.
"""

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "models")]

from lora_adapter import random_pairs  # noqa: E402

import localinfer  # noqa: E402
from localinfer import Model  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.hub import resolve  # noqa: E402

MATRIX = re.compile(r"blk\.\d+\.(attn_(q|k|v|output)|ffn_(gate|up|down))\.weight")
ALPHA = 0.01  # small, so that both models generate text
PROMPT = list(range(100, 132))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--type", choices=("f16", "f32"), default="f16", help="of the adapter's matrices")
    arguments = parser.parse_args()
    print("| model | without | residual captured | ratio | LoRA | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in arguments.models:
        print(f"| {name} | {row(name, arguments)} |", flush=True)


def row(name: str, arguments: argparse.Namespace) -> str:
    path = resolve.find(name)
    options = {"threads": arguments.threads, "ctx_size": 256, "spec_type": "none"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plain = stack.enter_context(localinfer.load(path, **options))
        adapter = write_adapter(folder / "adapter.gguf", path, arguments.rank, arguments.type)
        adapted = stack.enter_context(localinfer.load(path, lora=[str(adapter)], **options))
        point = f"blk.{len(plain.engine.compiled_graph.model_graph.block_starts) // 2}.resid_post"

        def captured() -> float:
            with plain.capture(point):
                return decode_speed(plain, arguments.tokens)

        runs: list[Callable[[], float]] = [
            lambda: decode_speed(plain, arguments.tokens), captured, lambda: decode_speed(adapted, arguments.tokens)
        ]  # fmt: skip
        rounds = [[run() for run in runs] for _ in range(arguments.rounds + 1)][1:]  # the first round warms up
    speeds = [statistics.median(each) for each in zip(*rounds, strict=True)]
    captured_ratio, adapted_ratio = (statistics.median(each[i] / each[0] for each in rounds) for i in (1, 2))
    return (
        f"{speeds[0]:.1f} t/s | {speeds[1]:.1f} t/s | **{captured_ratio:.3f}** | "
        f"{speeds[2]:.1f} t/s | **{adapted_ratio:.3f}**"
    )


def write_adapter(path: Path, model: Path, rank: int, kind: str) -> Path:
    """Write an adapter with random matrices for all matrices of a model's layers."""
    f = open_gguf(model)
    shapes = {name: each.shape for name, each in f.tensors.items() if MATRIX.fullmatch(name)}
    dtype = {"f16": np.float16, "f32": np.float32}[kind]
    architecture = f.get("general.architecture", str)
    return random_pairs(path, shapes, rank=rank, alpha=ALPHA, dtype=dtype, architecture=architecture)


def decode_speed(model: Model, tokens: int) -> float:
    """Return the tokens per second of greedy decoding."""
    stats = model.generate(PROMPT, temperature=0, max_tokens=tokens, ignore_eos=True).stats
    return stats.generated_tokens / stats.generate_seconds


if __name__ == "__main__":
    main()
