"""Shared helpers for tests that compare an engine with an oracle."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny import tiny_qwen2

from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.media.media_embeddings import MediaEmbeddings
from localinfer.runtime.sequence_engine import SequenceEngine

Write = Callable[..., Path]
Logits = NDArray[np.floating[Any]]
N = 150  # tokens: nine windows of tiny_gemma3


@contextmanager
def engine(path: Path, **options: Any) -> Iterator[Engine]:
    """Open an engine with two threads and a context of N tokens, unless the options differ."""
    opened = Engine.load(open_gguf(path), Options(**({"threads": 2, "ctx_size": N, "precision": "high"} | options)))
    try:
        yield opened
    finally:
        opened.close()


def media_ids(engine: SequenceEngine, embeddings: MediaEmbeddings) -> list[int]:
    """Return token ids for the rows of an image, which nothing holds: the same for equal digests."""
    assert engine.runner.media_table
    return engine.runner.media_table.add(embeddings)


def biased(path: Path) -> Path:
    """Write a tiny qwen2 with large key biases in the slowest rotating pairs, as in trained models."""
    bias = np.random.default_rng(0).standard_normal((2, 2, 32)) * np.where(np.arange(32) < 24, 0.5, 100)
    return tiny_qwen2(path, **{f"blk.{n}.attn_k.bias": bias.ravel().astype(np.float32) for n in range(2)})


def tokens(n: int = N) -> list[int]:
    """Return the same random ids every time, all within both tiny vocabularies."""
    return np.random.default_rng(0).integers(0, 270, n).tolist()


def assert_close(logits: Logits, expected: Logits) -> None:
    """Check that logits agree up to float32 error. Logits of tiny models have a standard deviation of at least 1.6.

    `Rounded` in float32 differs from itself in float64 by up to 0.003, with a root mean square of 0.0004.
    """
    np.testing.assert_allclose(logits, expected, atol=6e-3)
    assert np.sqrt(np.mean((logits - expected) ** 2)) <= 8e-4


def divergence(p: Logits, q: Logits) -> float:
    """Return the mean KL(P || Q) over the rows."""
    log_p, log_q = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (p, q.astype(np.float64)))
    return float((np.exp(log_p) * (log_p - log_q)).sum(axis=-1).mean())
