"""llama.cpp's parallel decoding in a subprocess: reads a number of sequences per line, and prints the seconds for
decoding a number of tokens of each. Only llama.cpp's calls are timed, without sampling.

    python tests/benchmarks/llama_cpp_batched.py MODEL MOST_SEQUENCES TOKENS
"""

import sys
import time
from pathlib import Path

import llama_cpp as C
import numpy as np
from llama_cpp_engine import Llama

PROMPT = 8  # tokens of each prompt


class BatchedLlama(Llama):
    """Parallel sequences without shared KV cache entries, as in llama-batched-bench."""

    def __init__(self, path: Path, sequences: int, *, threads: int, n_ctx: int) -> None:
        super().__init__(path, threads=threads, n_ctx=n_ctx)
        C.llama_free(self.context)
        params = C.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx * sequences, 512, 512
        params.n_threads = params.n_threads_batch = threads
        params.n_seq_max = sequences
        self.context = C.llama_init_from_model(self.model, params)

    def step(self, ids: list[int], position: int) -> float:
        """Decode one token of each sequence and return the seconds."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, id in enumerate(ids):
            batch.token[i], batch.pos[i] = id, position
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, i, True
        start = time.perf_counter()
        if C.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        C.llama_synchronize(self.context)
        return time.perf_counter() - start

    def seconds(self, sequences: int, tokens: int) -> float:
        C.llama_memory_clear(C.llama_get_memory(self.context), False)
        ids = np.random.default_rng(0).integers(100, 10_000, (PROMPT + tokens, sequences)).tolist()
        times = [self.step(row, position) for position, row in enumerate(ids)]
        return sum(times[PROMPT:])


def main() -> None:
    path, sequences, tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with BatchedLlama(path, sequences, threads=2, n_ctx=512) as llama:
        print("ready", flush=True)
        for line in sys.stdin:
            print(llama.seconds(int(line), tokens), flush=True)


if __name__ == "__main__":
    main()
