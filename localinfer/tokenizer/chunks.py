"""Splitting of a long text into chunks of tokens, as llama.cpp's evaluation tools do it.

Chunks are consecutive and do not overlap; a partial chunk at the end is dropped. If the tokenizer adds BOS, it replaces
the first token of each chunk.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.tokenizer.tokenizer import Tokenizer

Chunks = NDArray[np.int32]  # (chunks, n_ctx)
MIN_CHUNKS = 2  # a single chunk has no standard error
MIN_TOKENS = 8  # tokens in a chunk


def split_text(
    tokenizer: Tokenizer,
    text: str,
    n_ctx: int,
    *,
    max_chunks: int = 0,
    parse_special: bool = False,
    option: str = "text",
    hint: str = "; reduce ctx_size (--ctx-size)",
) -> Chunks:
    """Return the chunks of a text, int32 (chunks, n_ctx), at most `max_chunks` (0: all).

    Raises UsageError if chunks are too short or the text has fewer tokens than two chunks. The message names the
    `option` that supplied the text and ends with the `hint`.
    """
    if n_ctx < MIN_TOKENS:
        raise UsageError(f"ctx_size: chunks of {n_ctx} tokens are too short, the minimum is {MIN_TOKENS}")
    tokens = tokenizer.encode(text, parse_special=parse_special)
    count = len(tokens) // n_ctx
    if count < MIN_CHUNKS:
        what = f"a text of {len(tokens)} tokens is too short: {MIN_CHUNKS} chunks of {n_ctx} need {MIN_CHUNKS * n_ctx}"
        raise UsageError(f"{option}: {what}{hint}")
    return split_tokens(tokenizer, tokens, n_ctx, max_chunks=max_chunks)


def split_tokens(tokenizer: Tokenizer, tokens: Sequence[int], n_ctx: int, *, max_chunks: int = 0) -> Chunks:
    """Return the chunks of a tokenized text, as `split_text` does."""
    count = min(len(tokens) // n_ctx, max_chunks or len(tokens))
    chunks = np.array(tokens[: count * n_ctx], np.int32).reshape(count, n_ctx)
    if tokenizer.add_bos and tokenizer.bos is not None:
        chunks[:, 0] = tokenizer.bos
    return chunks
