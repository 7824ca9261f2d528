"""A long text, cut into chunks that a model reads one by one, as llama.cpp's tools that measure models cut it.

Chunks are neighbours and do not overlap; what does not fill one is left out. A model that wants its texts to begin
with BOS gets it in the place of each chunk's first token. Knows nothing of what is measured.
"""

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.tokenizer import Tokenizer

Chunks = NDArray[np.int32]  # (chunks, n_ctx)
LEAST = 2  # chunks: one alone says nothing of a model
SHORTEST = 8  # tokens in a chunk


def cut(
    tokenizer: Tokenizer,
    text: str,
    n_ctx: int,
    *,
    most: int = 0,
    parse_special: bool = False,
    option: str = "--file",
    hint: str = "; --ctx-size sets shorter ones",
) -> Chunks:
    """The chunks of a text, int32 (chunks, n_ctx), at most so many (0: all).

    Raises UsageError for chunks that are too short, and for a text that has not enough tokens for two; it names the
    `option` that the text came with, and ends with the `hint`.
    """
    if n_ctx < SHORTEST:
        raise UsageError(f"--ctx-size: chunks of {n_ctx} tokens are too short, {SHORTEST} are the least")
    tokens = np.array(tokenizer.encode(text, parse_special=parse_special), np.int32)
    count = len(tokens) // n_ctx
    if count < LEAST:
        what = f"a text of {len(tokens)} tokens is too short: {LEAST} chunks of {n_ctx} need {LEAST * n_ctx}"
        raise UsageError(f"{option}: {what}{hint}")
    chunks = tokens[: count * n_ctx].reshape(count, n_ctx)
    if tokenizer.add_bos and tokenizer.bos is not None:
        chunks[:, 0] = tokenizer.bos
    return chunks[:most] if most else chunks
