"""Qwen3-Next (Alibaba, 2025): as qwen35moe, but recurrent heads that share a key are neighbours."""

from localinfer.architectures import qwen35
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are divided by their sum."""
    qwen35.record(r, r.router(normed=True), neighbours=True)
