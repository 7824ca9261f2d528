"""Qwen2 and Qwen2.5 (Alibaba, 2024): as llama, but queries, keys and values have biases, and heads turn in halves."""

from localinfer.architectures import llama
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """As llama; biases are the file's."""
    llama.record(r, "halves")
