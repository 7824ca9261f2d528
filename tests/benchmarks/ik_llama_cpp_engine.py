"""A thin wrapper of ik_llama.cpp's C API from `ik-llama-cpp-python`, for the benchmarks.

ik_llama.cpp is a fork of llama.cpp with faster matrix products on CPUs and an older API. Its wheel is compiled for AVX2
and needs an environment of its own; see performance_targets.py.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ik_llama_cpp import _ctypes_api as C
from numpy.typing import NDArray


class IkLlama:
    """A model and a context, with the library's defaults (flash attention and fused operations are on)."""

    def __init__(self, path: Path, *, threads: int, n_ctx: int, n_batch: int = 512) -> None:
        C.llama_backend_init()
        self.model = C.llama_model_load_from_file(str(path).encode(), C.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"ik_llama.cpp cannot load {path}")
        params = C.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_batch
        params.n_threads = params.n_threads_batch = threads
        self.context = C.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"ik_llama.cpp has no context for {path}")
        self.n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(self.model))
        self.n_batch, self.n_past = n_batch, 0
        self.batch = C.llama_batch_init(n_batch, 0, 1)

    def rewind(self, n: int) -> int:
        """Clear the context, whatever `n` is. Returns 0, the number of remaining tokens."""
        C.llama_kv_cache_clear(self.context)
        self.n_past = 0
        return 0

    def evaluate(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens and return the logits after the last one, (n_vocab,), a view valid until the next call."""
        for start in range(0, len(tokens), self.n_batch):
            chunk = tokens[start : start + self.n_batch]
            self._decode(chunk)
        logits = C.llama_get_logits_ith(self.context, len(chunk) - 1)
        return np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self.n_vocab,))

    def _decode(self, tokens: Sequence[int]) -> None:
        """Call llama_decode with tokens of one sequence, starting at position n_past."""
        n, batch = len(tokens), self.batch
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, self.n_past + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i == n - 1
        code = C.llama_decode(self.context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode: {code}")
        self.n_past += n
