"""Saved and restored KV caches continue with the same bits."""

from contextlib import closing
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference_models
from tiny import tiny_gemma3, tiny_llama, tiny_qwen2

from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine

IDS = np.random.default_rng(0).integers(0, reference_models.N_VOCAB, 160).tolist()


def compressed(path: Path) -> Path:
    """Write a model with a window, and with keys for runs of 4 and of 12 positions."""
    return checkpoints.as_f32(reference_models.checkpoint("deepseek4-runs", path.parent), path)


def with_runs(path: Path) -> Path:
    """Write a model whose indexer has keys for runs of 4 positions only."""
    return checkpoints.as_f32(reference_models.checkpoint("qwen4exp", path.parent), path)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "f16": (tiny_llama, {}),
    "quantized": (tiny_llama, {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
    "anchored": (tiny_qwen2, {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
    "sliding": (tiny_gemma3, {"batch_size": 16}),
    "compressed": (compressed, {"batch_size": 16}),
    "runs": (with_runs, {"batch_size": 16}),
    "ring": (tiny_llama, {"ctx_policy": "ring", "ctx_size": 64, "batch_size": 16}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_restored_cache_continues_with_the_same_bits(case: str, tmp_path: Path) -> None:
    tiny, options = CASES[case]
    path = tiny(tmp_path / "m.gguf")
    with closing(Engine.load(open_gguf(path), Options(**({"threads": 1, "ctx_size": 200} | options)))) as engine:
        engine.evaluate(IDS[:120])
        saved = engine.sequence.save()
        expected = engine.logits(IDS[120:])
        engine.reset()
        engine.evaluate(IDS[::-1])
        engine.sequence.load(IDS[:120], saved)
        assert engine.n_past == 120
        np.testing.assert_array_equal(engine.logits(IDS[120:]), expected)


def test_only_pages_in_use_are_saved(tmp_path: Path) -> None:
    with closing(Engine.load(open_gguf(tiny_llama(tmp_path / "m.gguf")), Options(threads=1, ctx_size=512))) as engine:
        engine.evaluate(IDS[:10])
        saved = sum(chunk.nbytes for chunks in engine.sequence.save() for chunk in chunks)
        assert saved < engine.compiled_graph.model_graph.cache_bytes / 4
