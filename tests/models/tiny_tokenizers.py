"""Tokenizers of tiny vocabularies with modifications. Keys are those of tokenizer.ggml."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny import Field, bpe_vocabulary, spm_vocabulary, tiny_gemma3, tiny_llama

from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf

KEY = "tokenizer.ggml."
TINY = {"bpe": (tiny_llama, bpe_vocabulary), "spm": (tiny_gemma3, spm_vocabulary)}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

Loader = Callable[..., Tokenizer]


def tiny_tokenizer(path: Path, kind: str, replaced: dict[str, str] | None = None, **keys: Any) -> Tokenizer:
    """Write a tiny vocabulary to `path` with some tokens `replaced` and some keys set, and load its tokenizer."""
    write, vocabulary = TINY[kind]
    changes = {KEY + key: value for key, value in keys.items()}
    if replaced:
        old = vocabulary()[KEY + "tokens"].value
        changes[KEY + "tokens"] = strings([replaced.get(token, token) for token in old])
    return from_gguf(open_gguf(write(path, n_layer=1, **changes)))


def strings(values: list[str]) -> Field:
    return Field("ARRAY", values, "STRING")


def numbers(values: list[float], element: str) -> Field:
    return Field("ARRAY", values, element)


def types_with(kind: str, changed: dict[str, int]) -> Field:
    """Return the token types of a tiny vocabulary, some of them changed."""
    vocabulary = TINY[kind][1]()
    pairs = zip(vocabulary[KEY + "tokens"].value, vocabulary[KEY + "token_type"].value, strict=True)
    return numbers([changed.get(token, old) for token, old in pairs], "INT32")


def of_types(tokens: list[str], types: list[int]) -> dict[str, Field]:
    return {"tokens": strings(tokens), "token_type": numbers(types, "INT32")}


ONE_MERGE = strings(["o n"])  # for tests that replace the tokens; an array must not be empty
