"""EmbeddingGemma (Google, 2025): Gemma 3 whose tokens see the whole text, or half a window to each side."""

from localinfer.architectures import gemma3
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """What a text is compared by are the states behind the last norm."""
    gemma3.record(r)
