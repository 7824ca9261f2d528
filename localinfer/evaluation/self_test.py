"""A self-test of this machine: a small model with random weights, compared with float64.

The model is a `llama` of two layers in the formats of Q4_K_M and Q8_0 files. It is written to a temporary folder and
run with the kernels that real models use. A wrong result on an untested CPU or operating system then shows before a
model's answers do.
"""

import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from localinfer import naive
from localinfer.errors import LocalInferError
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.machine import resources
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from quant.jit.loader import Progress

N_LAYER, N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, N_VOCAB = 2, 256, 512, 4, 2, 64, 512
N_PROMPT, N_STEPS = 40, 4  # tokens that are evaluated together, and then one by one
ROPE_BASE, RMS_EPS = 10000.0, 1e-5
MAX_ERROR = 0.03  # of the logits' norm; activations of 8 bits cost about 0.01, one wrong row of sixteen 0.2
TIMEOUT_SECONDS = 300
SPEED_RUNS = 20

# The byte offsets of the half-precision scales of a block, each with the factor that gives its values a mean of 0.
SCALES = {"Q8_0": {0: 1.0}, "Q4_K": {0: 1.0, 2: 7.5}, "Q6_K": {208: 1.0}}
MATRICES = {
    "attn_q": ("Q4_K", N_HEAD * HEAD_DIM, N_EMBD),
    "attn_k": ("Q4_K", N_HEAD_KV * HEAD_DIM, N_EMBD),
    "attn_v": ("Q6_K", N_HEAD_KV * HEAD_DIM, N_EMBD),
    "attn_output": ("Q8_0", N_EMBD, N_HEAD * HEAD_DIM),
    "ffn_gate": ("Q4_K", N_FF, N_EMBD),
    "ffn_up": ("Q4_K", N_FF, N_EMBD),
    "ffn_down": ("Q6_K", N_EMBD, N_FF),
}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The logits of a run, float32 (n_tokens, n_vocab), and the kernels that it compiled, with the time in seconds to
    load or compile all."""

    logits: NDArray[np.float32]
    n_compiled: int
    seconds: float

    @property
    def digest(self) -> str:
        """The SHA-256 of the logits' bits."""
        return hashlib.sha256(self.logits.tobytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class FreshProcess:
    """What a new process found: the kernels that it compiled, although the cache should have had them, the seconds to
    load all, and whether its logits have the same bits."""

    n_compiled: int
    seconds: float
    is_equal: bool


class Speed(NamedTuple):
    """Tokens per second, the fastest of several runs, of a model of so many bytes."""

    prefill: float
    decode: float
    n_bytes: int


class SelfTest:
    """The checks of a self-test, on the model file at `path`. `tested` is the evaluation with all `threads`."""

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path, self.file, self.threads = path, open_gguf(path), resources.default_threads()
        self.tested = evaluate(self.file, self.threads, progress)

    def close(self) -> None:
        """Unmap the model file, which Windows deletes only then."""
        del self.file
        gc.collect()

    def error(self) -> float:
        """Return the norm of the difference between logits and float64, relative to the norm of the logits."""
        expected = naive.forward(naive.Model(self.file), token_ids())
        return float(np.linalg.norm(self.tested.logits - expected) / np.linalg.norm(expected))

    def has_equal_bits(self) -> bool:
        """Return whether one thread, one token at a time, gives logits with the same bits."""
        return evaluate(self.file, 1, steps=True).digest == self.tested.digest

    def speed(self) -> "Speed":
        """Return the speed of the model. It fits in the caches, so this is what each step costs besides reading
        weights."""
        ids, prefill, decode = token_ids(), list[float](), list[float]()
        options = Options(threads=self.threads, ctx_size=64, tune=False)
        with closing(Engine.load(self.file, options)) as engine:
            for _ in range(SPEED_RUNS):
                engine.rewind(0)
                prefill.append(seconds_of(engine, ids[:N_PROMPT]))
                decode += [seconds_of(engine, [id]) for id in ids[N_PROMPT:]]
        return Speed(N_PROMPT / min(prefill), 1 / min(decode), self.file.size)

    def run_in_new_process(self) -> FreshProcess:
        """Evaluate the model in a new process, which loads its kernels from the cache. Raises LocalInferError if it
        fails."""
        code = "from localinfer.evaluation.self_test import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, str(self.path)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_SECONDS,
        )
        if done.returncode:
            last_line = (done.stderr.strip().splitlines() or [""])[-1]
            raise LocalInferError(f"a new process ended with code {done.returncode}: {last_line}")
        answer = json.loads(done.stdout)
        return FreshProcess(answer["n_compiled"], answer["seconds"], answer["digest"] == self.tested.digest)


def seconds_of(engine: Engine, ids: Sequence[int]) -> float:
    """Return the time of evaluating tokens together."""
    start = time.perf_counter()
    engine.logits(ids)
    return time.perf_counter() - start


@contextmanager
def self_test(progress: Progress | None = None) -> Iterator[SelfTest]:
    """Write the model, evaluate it, and yield its checks. The model is deleted afterwards. Raises LocalInferError if
    the model cannot run."""
    with tempfile.TemporaryDirectory(prefix="localinfer-self-test-", ignore_cleanup_errors=True) as folder:
        test = SelfTest(write_model(Path(folder) / "model.gguf"), progress)
        try:
            yield test
        finally:
            test.close()


def main() -> None:
    """Evaluate the model at the path in the arguments, and write the result to stdout as JSON."""
    result = evaluate(open_gguf(Path(sys.argv[1])), resources.default_threads())
    answer = {"digest": result.digest, "n_compiled": result.n_compiled, "seconds": result.seconds}
    sys.stdout.write(json.dumps(answer) + "\n")


def token_ids() -> list[int]:
    """Return the tokens that are evaluated."""
    return [*map(int, np.random.default_rng(1).integers(0, N_VOCAB, N_PROMPT + N_STEPS))]


def evaluate(f: GGUF, threads: int, progress: Progress | None = None, *, steps: bool = False) -> Evaluation:
    """Evaluate the tokens: the first N_PROMPT together, unless all are evaluated in `steps`, then one by one."""
    n_compiled = 0

    def count(stage: str, done: int, total: int) -> None:
        nonlocal n_compiled
        n_compiled = max(n_compiled, done)
        if progress:
            progress(stage, done, total)

    ids, n_prompt, start = token_ids(), 1 if steps else N_PROMPT, time.perf_counter()
    options = Options(threads=threads, ctx_size=64, tune=False)
    with closing(Engine.load(f, options, count)) as engine:
        seconds = time.perf_counter() - start
        logits = [engine.logits(ids[:n_prompt]), *(engine.logits([id]) for id in ids[n_prompt:])]
    return Evaluation(np.concatenate(logits), n_compiled, seconds)


# --- the model ---


def write_model(path: Path) -> Path:
    """Write a `llama` model with random weights, always the same. Return its path."""
    rng, writer = np.random.default_rng(0), gguf.GGUFWriter(path, "llama")
    writer.add_block_count(N_LAYER)
    writer.add_context_length(512)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_layer_norm_rms_eps(RMS_EPS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(HEAD_DIM)
    matrices = {"token_embd": ("Q8_0", N_VOCAB, N_EMBD), "output": ("Q6_K", N_VOCAB, N_EMBD)}
    norms = ["output_norm"]
    for layer in range(N_LAYER):
        matrices |= {f"blk.{layer}.{name}": matrix for name, matrix in MATRICES.items()}
        norms += [f"blk.{layer}.attn_norm", f"blk.{layer}.ffn_norm"]
    for name, (kind, n_out, n_in) in matrices.items():
        size = 1.0 if name == "token_embd" else n_in**-0.5
        writer.add_tensor(f"{name}.weight", random_rows(rng, kind, n_out, n_in, size), raw_dtype=number_of(kind))
    for name in norms:
        writer.add_tensor(f"{name}.weight", rng.uniform(0.5, 1.5, N_EMBD).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def number_of(kind: str) -> GGMLQuantizationType:
    return GGMLQuantizationType[kind]


def random_rows(rng: np.random.Generator, kind: str, n_out: int, n_in: int, size: float) -> NDArray[np.uint8]:
    """Return rows of random blocks, uint8 (n_out, bytes of a row), whose values have a standard deviation of about
    `size`."""
    n_values, n_bytes = gguf.GGML_QUANT_SIZES[number_of(kind)]
    blocks = rng.integers(0, 256, (n_out * n_in // n_values, n_bytes), np.uint8)

    def set_scales(scale: float) -> None:
        for offset, factor in SCALES[kind].items():
            blocks[:, offset : offset + 2] = np.array([factor * scale], "<f2").view(np.uint8)

    set_scales(2.0**-10)
    set_scales(2.0**-10 * size / float(gguf.dequantize(blocks, number_of(kind)).std()))
    return blocks.reshape(n_out, -1)
