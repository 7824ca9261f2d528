"""Decoding with a mixture of experts that is larger than memory, side by side with llama.cpp's memory mapping.

    python tests/benchmarks/larger_than_memory.py FOLDER --llama-bench build/bin/llama-bench -t 2

Writes a file with random weights in the shape of Qwen3-30B-A3B's layers to FOLDER, unless it is there. Both engines
decode in a memory cgroup (needs root) of a third of the file's size, in turns, and begin without the file in the page
cache. The read bandwidth of the storage is measured before and after each turn, with several direct reads at a time.

A random router uses all experts nearly equally often, which is the worst case for a cache. With --skewed, a quarter of
the experts is preferred. llama.cpp's speed depends on how much the system reads around a page that is missing
(`/sys/block/DEVICE/queue/read_ahead_kb`), so the script prints it.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from locations import PYTHONPATH

sys.path[:0] = [*PYTHONPATH, str(Path(__file__).parent / "shapes")]

import gguf  # noqa: E402
import numpy as np  # noqa: E402
from memory_cgroup import MemoryGroup, memory_group  # noqa: E402
from mixture_of_experts import MIXTURES, MixtureShape  # noqa: E402
from synthetic import write_file  # noqa: E402

from localinfer.gguf.direct_file import measure_read_bandwidth  # noqa: E402
from localinfer.gguf.mapped_file import MappedFile  # noqa: E402

NAME = "qwen3moe"
TURNS = 3
EMBEDDING = 4.0  # large enough that the hidden states of tokens differ
PREFERRED, PREFERENCE = 0.25, 2.0  # the part of the experts whose router weights are larger with --skewed, and how much


def write_model(folder: Path, layers: int, *, skewed: bool) -> Path:
    """Return the file of the model, which is written unless it exists."""
    path = folder / f"larger-than-memory-{layers}{'-skewed' * skewed}.gguf"
    if not path.exists():
        base = MIXTURES[NAME]
        mixture: MixtureShape = replace(base, dimensions=replace(base.dimensions, n_layer=layers))
        shapes = mixture.shapes(NAME)
        types = {name: mixture.type_of(name, shape) for name, shape in shapes.items()}
        write_file(path, mixture.metadata(NAME), shapes, types, EMBEDDING)
        change_routers(path, PREFERENCE if skewed else 1.0)
    return path


def change_routers(path: Path, preference: float) -> None:
    """Give the router's rows a mean of 0, because all tokens have a common component in random models: the mean of the
    hidden state. Multiply the rows of some experts of each layer by `preference`."""
    rng = np.random.default_rng(0)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if "ffn_gate_inp" in tensor.name:
            rows = tensor.data.reshape(-1, int(tensor.shape[0]))
            rows[:] = rng.standard_normal(rows.shape, np.float32) / rows.shape[1] ** 0.5
            rows -= rows.mean(axis=1, keepdims=True)
            rows[rng.permutation(len(rows))[: int(PREFERRED * len(rows))]] *= preference


def drop_from_page_cache(path: Path) -> None:
    """Remove the file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def run_in_group(group: MemoryGroup, command: list[str]) -> str:
    """Return the standard output of a command that runs within the memory limit."""
    result = subprocess.run(command, preexec_fn=group.enter, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{command[0]} ended with {result.returncode}: {result.stderr.strip()[-1000:]}")
    return result.stdout


def decode(path: Path, threads: int, tokens: int, memory: str) -> None:
    """Decode and print the result as JSON: the process that runs within the memory limit."""
    import random
    import time

    from localinfer.gguf.reader import open_gguf
    from localinfer.options import Options
    from localinfer.runtime.engine import Engine

    options = Options(ctx_size=512, threads=threads, spec_type="none", memory=memory)
    engine = Engine.load(open_gguf(path), options)
    cache, rng = engine.compiled_graph.expert_cache, random.Random(0)
    assert cache is not None, "the model fits into memory"
    for _ in range(tokens // 2):  # until the cache is full
        engine.evaluate([rng.randrange(engine.n_vocab)])
    cache.take_statistics()
    begin = time.perf_counter()
    for _ in range(tokens):
        engine.evaluate([rng.randrange(engine.n_vocab)])
    seconds, found = time.perf_counter() - begin, cache.take_statistics()
    print(
        json.dumps({
            "plan": engine.warnings[-1],
            "rate": tokens / seconds,
            "cached": found.cached_share,
            "read_ahead": found.read_ahead / found.used,
            "predicted": found.predicted_share,
            "bandwidth": found.bandwidth,
            "reading": found.read_seconds / seconds,
            "waiting": found.wait_seconds / seconds,
        })
    )
    engine.close()


def llama_bench_rate(group: MemoryGroup, program: str, path: Path, threads: int, tokens: int) -> float:
    """Return the tokens per second that llama-bench measures, with weights as they are in the file: repacking them
    would need memory for all of them."""
    command = [program, "-m", str(path), "-t", str(threads), "-p", "0", "-n", str(tokens), "-r", "1", "--repack", "0"]
    rate: float = json.loads(run_in_group(group, [*command, "-o", "json"]))[0]["avg_ts"]
    return rate


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--llama-bench", default="", metavar="PROGRAM")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-n", "--tokens", type=int, default=32)
    parser.add_argument("--layers", type=int, default=16, help="a layer has 0.35 GB (default: 16)")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--memory", default="", help="of localinfer (default: what the cgroup leaves)")
    parser.add_argument("--skewed", action="store_true", help="a quarter of the experts is preferred")
    parser.add_argument("--decode", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run the turns and print their results."""
    arguments = parse_arguments()
    if arguments.decode:
        decode(arguments.folder, arguments.threads, arguments.tokens, arguments.memory)
        return
    path = write_model(arguments.folder, arguments.layers, skewed=arguments.skewed)
    limit = path.stat().st_size // 3
    print(f"{path}: {path.stat().st_size / 1e9:.2f} GB; memory limit {limit / 1e9:.2f} GB")
    turns: list[dict[str, Any]] = []
    settings = ["-t", str(arguments.threads), "-n", str(arguments.tokens), "--memory", arguments.memory]
    for number in range(arguments.turns):
        before = measure_read_bandwidth([MappedFile(path)])
        drop_from_page_cache(path)
        with memory_group(limit) as group:
            command = [sys.executable, __file__, str(path), "--decode", *settings]
            found: dict[str, Any] = json.loads(run_in_group(group, command))
        found["storage"] = (before + measure_read_bandwidth([MappedFile(path)])) / 2
        if not number:
            print(found["plan"])
        drop_from_page_cache(path)
        if arguments.llama_bench:
            with memory_group(limit) as group:
                program, tokens = arguments.llama_bench, arguments.tokens
                found["llama.cpp"] = llama_bench_rate(group, program, path, arguments.threads, tokens)
        turns.append(found)
        print(json.dumps({name: round(value, 3) for name, value in found.items() if name != "plan"}), flush=True)
    if arguments.llama_bench:
        print(f"{median(each['rate'] / each['llama.cpp'] for each in turns):.2f} times as fast as llama.cpp (median)")
    shares = [each["bandwidth"] / each["storage"] for each in turns]
    print(f"{median(shares):.2f} of the storage's bandwidth while experts are read (median)")


if __name__ == "__main__":
    main()
