"""Sequences of a batch get the bits of sequences alone where layers have more than keys and values: states that decay
by channel, residual streams of earlier layers, keys of an indexer, compressed positions, and adapters that tokens
switch on."""

from contextlib import closing
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models
from numpy.typing import NDArray

from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.batch import Segment
from localinfer.runtime.engine import Engine


@pytest.mark.parametrize(
    "name",
    [
        "deepseek4", "glm-dsa-shared", "glm5-next-wide", "graniteswitch", "kimi-k3-wide", "minimax-m3-wide",
        "qwen4exp-wide",
    ],
)
def test_sequences_of_a_batch_have_the_bits_of_sequences_alone(name: str, tmp_path: Path) -> None:
    path, ids = tmp_path / "model.gguf", reference_models.expected(name).ids
    checkpoints.as_type(reference_models.checkpoint(name, tmp_path), path, "Q8_0")
    texts = [ids[:90], ids[10:75], ids[30:33]]
    with closing(Engine.load(open_gguf(path), Options(ctx_size=256, parallel=3, threads=2))) as engine:
        runner = engine.runner

        def evaluate(together: list[int]) -> list[NDArray[np.float32]]:
            """Return the logits after each text, and after one more token."""
            sequences, logits = [runner.new_sequence() for _ in together], []
            for tokens in ([texts[number] for number in together], [[7]] * len(together)):
                segments = [
                    Segment(each, np.array(ids, np.int32)) for each, ids in zip(sequences, tokens, strict=True)
                ]
                rows = np.cumsum([len(each) for each in tokens], dtype=np.int32) - 1
                logits.append(runner.evaluate_segments(segments, rows.astype(np.int32)).copy())
            return logits

        alone = [evaluate([number]) for number in range(len(texts))]
        batched = evaluate([0, 1, 2])
    for step, logits in enumerate(batched):
        np.testing.assert_array_equal(logits, np.concatenate([each[step] for each in alone]))
