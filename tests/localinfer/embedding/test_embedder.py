"""Embeddings of texts do not depend on what the KV cache holds."""

from pathlib import Path

import numpy as np
from tiny import tiny_llama

import localinfer


def test_full_context_does_not_matter(tmp_path: Path) -> None:
    texts = [[5, 6, 7] * 15, [8]]
    with localinfer.load(tiny_llama(tmp_path / "m.gguf"), ctx_size=64, threads=1) as model:
        expected = model.embed(texts)
        model.logits([5] * 60)
        np.testing.assert_array_equal(model.embed(texts), expected)
        assert not model.engine.sequence.tokens
