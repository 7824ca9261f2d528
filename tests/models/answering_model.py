"""A tiny model that gives one answer to every prompt, so that a test can tell an answer from noise.

    answering_model(path)       # says ANSWER, then ends its turn

Its layers add nothing to the residual stream. The next token depends only on the last one: ANSWER's tokens follow one
another, and the first of them follows any other token.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tiny import LLAMA, Stored, bpe_vocabulary, stored, tiny_llama

ANSWER = "Hello there!"
CHAIN = ("Hello", "Ġthe", "re", "!", "<|im_end|>")
CONSTANT = 16.0  # first component of each embedding
FIRST, NEXT = 1.8, 0.2  # weights of the output layer: any other token wins by 16 or more


def answering_model(path: Path, *, type: str = "Q8_0", **overrides: Any) -> Path:
    tokens = list(bpe_vocabulary()["tokenizer.ggml.tokens"].value)  # type: ignore[call-overload]
    chain = [tokens.index(token) for token in CHAIN]
    embeddings = np.random.default_rng(0).standard_normal((len(tokens), LLAMA.n_embd), np.float32)
    embeddings[:, 0] = CONSTANT
    output = np.zeros_like(embeddings)
    output[chain[0], 0] = FIRST
    for token, following in pairwise(chain):
        output[following, 1:] = NEXT * embeddings[token, 1:]
    weights: dict[str, Stored] = {
        "token_embd.weight": stored(embeddings, type),
        "output.weight": stored(output, type),
        "output_norm.weight": stored(np.ones(LLAMA.n_embd, np.float32), "F32"),
    }
    for layer in range(overrides.get("n_layer", LLAMA.n_layer)):
        weights[f"blk.{layer}.attn_output.weight"] = stored(np.zeros((256, 256), np.float32), type)
        n_ff = overrides.get("n_ff", LLAMA.n_ff)
        weights[f"blk.{layer}.ffn_down.weight"] = stored(np.zeros((256, n_ff), np.float32), type)
    return tiny_llama(path, type=type, tied=False, **(weights | overrides))
