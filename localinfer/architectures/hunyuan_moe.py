"""Hunyuan with experts (Tencent, 2025): as hunyuan-dense, with a mixture and a shared expert."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are divided by their sum."""
    decoder(r, Sight(r.rope("halves")), head_norm="after", router=r.router(normed=True))
