"""Tiny checkpoints of rerankers that are decoders: some are told apart by the name of their directory, jina-reranker-v3
by its class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import reference_models
from checkpoints import edit_json
from safetensors.numpy import load_file, save_file

MARKERS = ("<|embed_token|>", "<|rerank_token|>")  # of a document and of the query
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


def list_reranker(path: Path) -> Path:
    """Write a tiny jina-reranker-v3, whose projector has other sizes than the model, and return its path."""
    checkpoint("qwen3", path, (), (*CONTROL, *MARKERS))
    weights = load_file(path / "model.safetensors")
    n, random = weights["model.norm.weight"].size, np.random.default_rng(0)
    for name, shape in {"projector.0": (n // 2, n), "projector.2": (40, n // 2)}.items():
        weights[f"{name}.weight"] = random.normal(size=shape).astype(np.float32)
    save_file(weights, path / "model.safetensors")
    config = {"architectures": ["JinaForRanking"], "max_position_embeddings": 2048}
    edit_json(path / "config.json", lambda values: values.update(config))
    return path
