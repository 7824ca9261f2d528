"""Compares the logits of localinfer and llama.cpp with those of exact arithmetic, and with each other.

    python tests/benchmarks/accuracy/fidelity.py smollm2 gemma3-270m            # downloaded models, or paths
    python tests/benchmarks/accuracy/fidelity.py model.gguf -n 2048 --keep /tmp/logits
    python tests/benchmarks/accuracy/fidelity.py model.gguf -n 256 --caches     # the error of quantized KV caches

Exact arithmetic is localinfer/naive: the dequantized weights of the same file, in float32 throughout (--dtype
float64 changes only the duration). All engines evaluate the same tokens (teacher forcing), and every position counts.
KL(P || Q) is summed over the whole vocabulary in float64. The logits of each engine are stored in a file of 4 bytes x
positions x vocabulary; --keep DIR keeps the files for the next run. Prints a Markdown table. Needs the dependency
groups `test` and `bench`. formats.py covers all formats and both precisions.
"""

import argparse
import functools
import hashlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[2]))
from locations import DATA, PYTHONPATH

sys.path[:0] = PYTHONPATH

from llama_cpp_engine import Llama  # noqa: E402

from localinfer import naive  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.hub.resolve import find  # noqa: E402

Logits = NDArray[np.float32]  # (n_tokens, n_vocab)

PAIRS = (
    ("exact", "localinfer"),
    ("exact", "localinfer, high precision"),
    ("exact", "localinfer, one by one"),
    ("exact", "llama.cpp, batch 512"),
    ("exact", "llama.cpp, batch 1"),
    ("llama.cpp, batch 512", "llama.cpp, batch 1"),
    ("llama.cpp, batch 512", "localinfer"),
    ("llama.cpp, batch 512", "localinfer, one by one"),
    ("localinfer", "localinfer, one by one"),
)
CACHES = {f"localinfer, cache in {kind}": kind for kind in ("f32", "f16", "q8_0", "q4_0")}


class Job(NamedTuple):
    """The tokens and settings that every engine evaluates."""

    path: Path
    tokens: list[int]
    threads: int
    dtype: str


# ---------------------------------------------------------------------------------------------- sources


def exact_logits(job: Job, out: Logits) -> None:
    """Compute the reference logits, some columns of the vocabulary at a time."""
    model = naive.Model(open_gguf(job.path), job.dtype)
    last, start = naive.final_hidden_states(model, job.tokens), 0
    for chunk in naive.output(model, last):
        out[:, start : start + chunk.shape[1]] = chunk
        start += chunk.shape[1]


def llama_cpp(batch: int) -> Callable[[Job, Logits], None]:
    """Return a function that computes logits with llama.cpp's defaults in batches of `batch` tokens."""

    def run(job: Job, out: Logits) -> None:
        with Llama(job.path, threads=job.threads, n_ctx=len(job.tokens), n_batch=batch) as llama:
            for rows in slices(len(job.tokens), batch):
                out[rows] = llama.logits(job.tokens[rows])

    return run


def localinfer_prefill(**options: str) -> Callable[[Job, Logits], None]:
    """Return a function that computes logits in prefill: many tokens per batch."""

    def run(job: Job, out: Logits) -> None:
        import localinfer

        with localinfer.load(job.path, threads=job.threads, ctx_size=len(job.tokens), **options) as model:
            out[:] = model.logits(job.tokens)

    return run


def localinfer_decode(job: Job, out: Logits) -> None:
    """Compute logits in decode: one token per batch, which uses other kernels."""
    from localinfer.options import Options
    from localinfer.runtime.engine import Engine

    options = Options(threads=job.threads, ctx_size=len(job.tokens))
    engine = Engine.load(open_gguf(job.path), options)
    for i, token in enumerate(job.tokens):
        out[i] = engine.evaluate([token])
    engine.close()


SOURCES: dict[str, Callable[[Job, Logits], None]] = {
    "exact": exact_logits,
    "llama.cpp, batch 512": llama_cpp(512),
    "llama.cpp, batch 1": llama_cpp(1),
    "localinfer": localinfer_prefill(),
    "localinfer, high precision": localinfer_prefill(precision="high"),
    "localinfer, one by one": localinfer_decode,
} | {name: localinfer_prefill(cache_type_k=kind, cache_type_v=kind) for name, kind in CACHES.items()}


def logits_of(source: str, job: Job, n_vocab: int, folder: Path) -> Logits:
    """Return an engine's logits, computed unless `folder` contains them."""
    stat = job.path.stat()
    question = f"{source} {job} {stat.st_size} {stat.st_mtime_ns}"
    target = folder / f"{hashlib.sha256(question.encode()).hexdigest()[:16]}.npy"
    if not target.exists() or source.startswith("localinfer"):  # which is what changes from day to day
        partial_path = target.with_suffix(".part")
        shape = (len(job.tokens), n_vocab)
        out = np.lib.format.open_memmap(partial_path, mode="w+", dtype=np.float32, shape=shape)
        SOURCES[source](job, out)
        out.flush()
        partial_path.replace(target)
    logits: Logits = np.load(target, mmap_mode="r")
    return logits


# --------------------------------------------------------------------------------------------- distance


class Distance(NamedTuple):
    """The divergence between two sets of logits at all positions."""

    divergence: NDArray[np.float64]  # KL(P || Q) of each position, in nats
    same_top: float  # fraction of positions with the same most probable token (top-1 agreement)


def distance(p: Logits, q: Logits, batch_rows: int = 32) -> Distance:
    """Compare two sets of logits position by position, a few rows at a time."""
    divergence, same = [], 0
    for rows in slices(len(p), batch_rows):
        log_p, log_q = log_softmax(p[rows]), log_softmax(q[rows])
        divergence.append(np.sum(np.exp(log_p) * (log_p - log_q), axis=-1))
        same += int(np.sum(log_p.argmax(axis=-1) == log_q.argmax(axis=-1)))
    return Distance(np.concatenate(divergence), same / len(p))


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    """Return the log-softmax over the last axis in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


def slices(n: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover range(n)."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


# ------------------------------------------------------------------------------------------------ table


def report(path: Path, arguments: argparse.Namespace, folder: Path) -> None:
    """Print the table of one model."""
    with Llama(path, threads=1, n_ctx=64) as llama:
        tokens = llama.tokenize(arguments.text.read_text(encoding="utf-8"))[: arguments.n]
        n_vocab = llama.n_vocab
    job = Job(path, tokens, arguments.threads, arguments.dtype)
    print(f"\n**{path.name}**, {len(tokens)} positions of {arguments.text.name}\n")
    print("| P | Q | mean KL(P \\|\\| Q) | ± | median | 90 % | 99 % | max | same top-1 |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    ask = functools.cache(lambda source: logits_of(source, job, n_vocab, folder))
    for p, q in [("exact", cache) for cache in CACHES] if arguments.caches else PAIRS:
        if not {p, q} & set(arguments.skip):
            print(row(p, q, distance(ask(p), ask(q))), flush=True)


def row(p: str, q: str, d: Distance) -> str:
    """Return a table row: mean with standard error, quantiles, top-1 agreement."""
    k = d.divergence
    numbers = [k.mean(), k.std() / np.sqrt(len(k)), *np.quantile(k, [0.5, 0.9, 0.99]), k.max()]
    return f"| {p} | {q} | " + " | ".join(f"{x:.2g}" for x in numbers) + f" | {d.same_top:.1%} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and report each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("-n", type=int, default=1024, help="positions (default: 1024)")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads of both engines (default: 2)")
    parser.add_argument("--text", type=Path, default=DATA / "varied.txt")
    parser.add_argument("--dtype", default="float32", help="data type of exact arithmetic: float32 or float64")
    parser.add_argument("--caches", action="store_true", help="only localinfer, with KV caches of all types")
    parser.add_argument("--keep", type=Path, help="keep the logits in this folder for the next run")
    parser.add_argument("--skip", action="append", default=[], choices=SOURCES, help="skip an engine")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for model in arguments.models:
            report(find(model), arguments, folder)


if __name__ == "__main__":
    main()
