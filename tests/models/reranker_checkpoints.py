"""Tiny checkpoints of rerankers that are decoders, told apart by the name of their directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import reference_models
from checkpoints import edit_json

CONTROL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
FAMILIES = {  # name of the checkpoint: the reference model, its own tokens, its control tokens, the answers
    "Tiny-Qwen3-Reranker": ("qwen3", ("yes", "no"), CONTROL, ("yes", "no")),
    "mxbai-rerank-tiny-v2": ("qwen2", (), CONTROL[:2], ("1", "0")),
    "bge-reranker-v2-gemma": ("gemma", ("Yes",), ("<bos>",), ("Yes",)),
}


def checkpoint(reference: str, path: Path, tokens: Sequence[str], control: Sequence[str]) -> Path:
    """Write a reference model with further tokens, each of which is one of the rows that its embedding has, and return
    its path."""

    def add(values: dict[str, Any]) -> None:
        vocabulary, added = values["model"]["vocab"], values["added_tokens"]
        for token in tokens:
            vocabulary[token] = len(vocabulary) + 1
        added += [
            {"id": id, "content": token, "special": True, "normalized": False}
            for id, token in enumerate(control, len(vocabulary) + 1)
        ]

    reference_models.checkpoint(reference, path.parent).rename(path)
    edit_json(path / "tokenizer.json", add)
    edit_json(path / "config.json", lambda values: values.update(max_position_embeddings=1024))
    return path
