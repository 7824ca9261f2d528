"""Shared helpers for tests of speculative decoding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer import GenerationResult, Model
from localinfer.generation.speculative.draft_length import DraftLengthModel, PassCost
from localinfer.runtime.batch import Logits, Segment
from localinfer.runtime.compiled_graph import Floats
from localinfer.runtime.draft_head_runner import DraftHeadInput
from localinfer.runtime.engine import Engine
from localinfer.runtime.sequence_engine import SequenceEngine

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
HIGH_TEMPERATURE: dict[str, Any] = {"temp": 1.5, "top_k": 0, "min_p": 0.0, "seed": 7}


class FreeDrafting(PassCost):
    """A pass cost for which drafting is free and several tokens cost little more than one."""

    one_token_seconds, slope = 1.0, 0.01

    def update(self, tokens: int, seconds: float) -> None:
        pass

    def ratio(self, tokens: int) -> float:
        return 1 + self.slope * tokens


def make_draft_length_model() -> DraftLengthModel:
    """Return a draft length controller with that cost model."""
    known = DraftLengthModel()
    known.cost = FreeDrafting()
    return known


def generate(model: Model, **options: Any) -> GenerationResult:
    """Return what a model generates for `PROMPT`, without a cached prefix."""
    model.engine.reset()
    return model.generate(PROMPT, **options)


def evaluate_draft_head(
    engine: SequenceEngine, id: int, position: int, previous_state: Floats | None = None
) -> tuple[Logits, Floats]:
    """Evaluate the draft head after the tokens of an engine's sequence: see `DraftHeadRunner.evaluate_one`."""
    return engine.draft_head.evaluate_one(DraftHeadInput(engine.sequence, id, position, previous_state))


def check_draft_head_isolation(engine: Engine, ids: Sequence[int]) -> None:
    """Check that a draft head only attends to its own sequence, also after batches of two sequences."""
    alone = []
    for first in (0, 20):
        engine.reset()
        engine.evaluate(ids[first : first + 30])
        alone.append(evaluate_draft_head(engine, ids[50], 30)[0].copy())
    engine.reset()
    a, b = engine.runner.new_sequence(), engine.runner.new_sequence()
    for span in (slice(0, 13), slice(13, 14), slice(14, 30)):
        texts = ids[:30][span], ids[20:50][span]
        segments = [Segment(s, np.array(text, np.int32)) for s, text in zip((a, b), texts, strict=True)]
        engine.runner.evaluate_segments(segments)
    for sequence, expected in zip((a, b), alone, strict=True):
        engine.sequence = sequence.fork()
        np.testing.assert_array_equal(evaluate_draft_head(engine, ids[50], 30)[0], expected)
        engine.sequence.reset()


def draft_of_block(engine: SequenceEngine, id: int, position: int) -> tuple[Logits, NDArray[np.float32]]:
    """Return the logits of the tokens that a head drafts at once after a token, (n, n_vocab), each given the most
    probable token before it, and the probabilities that they are accepted: none without a confidence head."""
    block, rows, confidences = engine.draft_head.evaluate_block(engine.sequence, id, position), [], []
    for row in range(len(block.logits)):
        logits, confidence = engine.draft_head.draft_token_logits(block, row, id)
        rows.append(logits)
        confidences += [] if confidence is None else [confidence]
        id = int(logits.argmax())
    return np.array(rows), np.array(confidences, np.float32)
