"""Suggestions for a first model: those of models.toml that this machine can run, with an estimate of their speed.

Decode is bound by memory bandwidth: a token takes about as long as reading the weights that it needs.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from localinfer.hub.model_registry import ModelEntry

MAX_MEMORY_FRACTION = 0.8  # of the available memory for the weights; the KV cache and other programs need the rest
DECODE_FRACTION = 0.6  # of the peak memory bandwidth, which decode reaches with short contexts
STEP_SECONDS = 0.001  # for all that reads no weights
MIN_SPEED = 1.5  # tokens per second; slower models are not suggested
READING_SPEED = 8.0  # tokens per second; people read about as fast
MODERATE_SIZE = 4_000_000_000  # bytes; larger downloads are for those who want them


class Suggestion(NamedTuple):
    """A model, and the estimated speed of its decode."""

    entry: ModelEntry
    tokens_per_second: float


def suggest(entries: Iterable[ModelEntry], memory: int, bandwidth: float) -> list[Suggestion]:
    """Return the suggested models that fit in `memory` bytes and are fast enough with `bandwidth` bytes per second."""
    found = [
        Suggestion(entry, 1 / (STEP_SECONDS + (entry.bytes_per_token or entry.size) / (DECODE_FRACTION * bandwidth)))
        for entry in entries
        if entry.suggested and entry.size <= MAX_MEMORY_FRACTION * memory
    ]
    return [each for each in found if each.tokens_per_second >= MIN_SPEED]


def best_choice(suggestions: Sequence[Suggestion]) -> int:
    """Return the index of the last suggestion of moderate size that writes as fast as people read; 0 if none does."""
    return max(
        (
            index
            for index, (entry, speed) in enumerate(suggestions)
            if speed >= READING_SPEED and entry.size <= MODERATE_SIZE
        ),
        default=0,
    )
