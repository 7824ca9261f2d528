"""dots.llm1 (rednote, 2025): as qwen3moe, with shared experts and a first block without any; the choice is biased."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are logistic functions, normalised and scaled as the file says."""
    decoder(r, Sight(r.rope("halves")), head_norm="before", router=r.router("sigmoid", normed=True))
