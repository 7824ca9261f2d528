"""A thin wrapper of llama.cpp's C API from `llama-cpp-python`, for the benchmarks.

It does not use the high-level class, which copies logits and stores n_ctx x n_vocab of them.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
CACHE_TYPES = {"f32": 0, "f16": 1}  # ggml's type numbers


@C.llama_log_callback
def _silent(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Discard llama.cpp's log messages."""


C.llama_log_set(_silent, ctypes.c_void_p(0))


class Llama:
    """A model and one context.  `flash_attn`: auto is the library's own default, and decides for itself.

    `cache` is the type of keys and values: f16 is its default, too.
    `watch` sees every tensor of ggml's graph as it is computed: (address, ask, user data) -> whether it wants to.
    """

    def __init__(
        self, path: Path, *, threads: int, n_ctx: int, n_batch: int = 512, flash_attn: str = "auto",
        cache: str = "f16", watch: Callable[[int, bool, object], bool] | None = None,
    ) -> None:  # fmt: skip
        C.llama_backend_init()
        self.model = C.llama_model_load_from_file(str(path).encode(), C.llama_model_default_params())
        params = C.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, min(n_batch, 512)
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = FLASH_ATTN[flash_attn]
        params.type_k = params.type_v = CACHE_TYPES[cache]
        if watch:
            self.watch = params.cb_eval = C.ggml_backend_sched_eval_callback(
                watch
            )  # must live as long
        self.context = C.llama_init_from_model(self.model, params)
        if not self.model or not self.context:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.vocab = C.llama_model_get_vocab(self.model)
        self.n_vocab = C.llama_vocab_n_tokens(self.vocab)
        self.n_batch, self.n_past = n_batch, 0
        self.batch = C.llama_batch_init(n_batch, 0, 1)

    def tokenize(self, text: str) -> list[int]:
        """Tokenize a text and add the model's initial special tokens. Special tokens in the text are not parsed."""
        data = text.encode()
        ids = (C.llama_token * (len(data) + 8))()
        n = C.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, False)
        return list(ids[:n])

    def rewind(self, n: int) -> int:
        """Remove all but the first n tokens. Returns the number of remaining tokens."""
        memory = C.llama_get_memory(self.context)
        self.n_past = min(n, self.n_past) if C.llama_memory_seq_rm(memory, 0, n, -1) else 0
        if self.n_past == 0:
            C.llama_memory_clear(memory, False)
        return self.n_past

    def evaluate(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens and return the logits after the last one, (n_vocab,), a view valid until the next call."""
        for start in range(0, len(tokens), self.n_batch):
            chunk = tokens[start : start + self.n_batch]
            self._decode(chunk, every=False)
        return np.ctypeslib.as_array(C.llama_get_logits_ith(self.context, len(chunk) - 1), (self.n_vocab,))

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append at most n_batch tokens and return the logits after each, (len(tokens), n_vocab), a view as above."""
        self._decode(tokens, every=True)
        return np.ctypeslib.as_array(C.llama_get_logits(self.context), (len(tokens), self.n_vocab))

    def encode(self, tokens: Sequence[int]) -> None:
        """Give at most n_batch tokens to the encoder of an encoder-decoder model."""
        self._fill_batch(tokens, 0, every=True)
        code = C.llama_encode(self.context, self.batch)
        if code != 0:
            raise RuntimeError(f"llama_encode: {code}")

    def _decode(self, tokens: Sequence[int], *, every: bool) -> None:
        """Call llama_decode with tokens of one sequence, starting at position n_past."""
        self._fill_batch(tokens, self.n_past, every=every)
        code = C.llama_decode(self.context, self.batch)
        if code != 0:
            raise RuntimeError(f"llama_decode: {code}")
        self.n_past += len(tokens)

    def _fill_batch(self, tokens: Sequence[int], position: int, *, every: bool) -> None:
        """Put tokens of one sequence into the batch, from a position on."""
        n, batch = len(tokens), self.batch
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = every or i == n - 1

    def close(self) -> None:
        """Free the context and the model."""
        C.llama_batch_free(self.batch)
        C.llama_free(self.context)
        C.llama_model_free(self.model)

    def __enter__(self) -> "Llama":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
