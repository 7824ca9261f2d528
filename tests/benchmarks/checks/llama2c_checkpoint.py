"""Converts checkpoints of llama2.c, such as stories260K, to GGUF.

A checkpoint is seven integers (the sizes of the model) and all weights as float32; its tokenizer is another file: a
score, a length and a text for each token. `tests/models` must be among the folders of modules.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tiny
from numpy.typing import NDArray
from tiny import BYTE, CONTROL, NORMAL, UNKNOWN, Field, tiny_llama

HEADER = struct.Struct("<7i")
TOKEN = struct.Struct("<fi")
FIRST_BYTE, FIRST_PIECE = 3, 259  # the tokens before are <unk>, <s> and </s>
MULTIPLE = 32  # of the sizes that localinfer computes with


class Sizes(NamedTuple):
    """The integers at the start of a checkpoint. The output layer is the embedding if `n_vocab` is positive."""

    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    n_ctx: int


def convert(checkpoint: Path, tokenizer: Path, output: Path, **metadata: Any) -> None:
    """Write the model of a checkpoint, with these further metadata keys."""
    data = checkpoint.read_bytes()
    sizes = Sizes(*HEADER.unpack_from(data))
    if sizes.n_vocab < 0:
        raise ValueError(f"{checkpoint}: has an output layer of its own, which is not supported")
    weights = dict(tensors(np.frombuffer(data, "<f4", offset=HEADER.size), sizes))
    words = vocabulary(tokenizer.read_bytes(), sizes.n_vocab)
    write_llama(
        output, words, type="F32", n_layer=sizes.n_layer, n_embd=sizes.n_embd, n_head=sizes.n_head,
        n_ff=-(-sizes.n_ff // MULTIPLE) * MULTIPLE, n_head_kv=sizes.n_head_kv,
        head_dim=sizes.n_embd // sizes.n_head, **{"n_ctx": sizes.n_ctx} | weights | metadata)  # fmt: skip


def write_llama(path: Path, words: dict[str, Field], **keywords: Any) -> None:
    """Write a model as `tiny_llama` does, with another vocabulary."""
    original = tiny.bpe_vocabulary
    tiny.bpe_vocabulary = lambda: words
    try:
        tiny_llama(path, **keywords)
    finally:
        tiny.bpe_vocabulary = original


def tensors(values: NDArray[np.float32], sizes: Sizes) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the tensors by their names in GGUF. Each kind is stored for all layers together."""
    n, n_kv, n_layer = sizes.n_embd, sizes.n_embd // sizes.n_head * sizes.n_head_kv, sizes.n_layer
    position = 0

    def take(*shape: int) -> NDArray[np.float32]:
        nonlocal position
        start, position = position, position + int(np.prod(shape))
        return values[start:position].reshape(shape)

    yield "token_embd.weight", take(sizes.n_vocab, n)
    for name, shape in {
        "attn_norm": (n,), "attn_q": (n, n), "attn_k": (n_kv, n), "attn_v": (n_kv, n), "attn_output": (n, n),
        "ffn_norm": (n,), "ffn_gate": (sizes.n_ff, n), "ffn_down": (n, sizes.n_ff), "ffn_up": (sizes.n_ff, n),
    }.items():  # fmt: skip
        for layer, of_layer in enumerate(take(n_layer, *shape)):
            yield f"blk.{layer}.{name}.weight", padded(of_layer, sizes.n_ff)
    yield "output_norm.weight", take(n)


def padded(weights: NDArray[np.float32], n_ff: int) -> NDArray[np.float32]:
    """Add zeros where the width of the feed-forward layer is not a multiple of MULTIPLE, which changes no result."""
    return np.pad(weights, [(0, -size % MULTIPLE if size == n_ff else 0) for size in weights.shape])


def vocabulary(data: bytes, n_vocab: int) -> dict[str, Field]:
    """Return the metadata of the tokens."""
    pieces, scores, position = [], [], 4  # behind the length of the longest token
    for _ in range(n_vocab):
        score, length = TOKEN.unpack_from(data, position)
        position += TOKEN.size + length
        pieces.append(data[position - length : position].decode("utf-8", "replace").replace(" ", "▁"))
        scores.append(score)
    pieces[:FIRST_BYTE] = ["<unk>", "<s>", "</s>"]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * (FIRST_PIECE - FIRST_BYTE) + [NORMAL] * (n_vocab - FIRST_PIECE)
    return {
        "tokenizer.ggml.model": Field("STRING", "llama"),
        "tokenizer.ggml.tokens": Field("ARRAY", pieces, "STRING"),
        "tokenizer.ggml.scores": Field("ARRAY", scores, "FLOAT32"),
        "tokenizer.ggml.token_type": Field("ARRAY", types, "INT32"),
        "tokenizer.ggml.bos_token_id": Field("UINT32", 1),
        "tokenizer.ggml.eos_token_id": Field("UINT32", 2),
        "tokenizer.ggml.unknown_token_id": Field("UINT32", 0),
    }
