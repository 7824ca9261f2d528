"""Qwen3.5 with experts (Alibaba, 2026): as qwen35, with a mixture whose shared expert has a gate of its own."""

from localinfer.architectures import qwen35
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are divided by their sum."""
    qwen35.record(r, r.router(normed=True))
