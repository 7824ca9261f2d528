"""OLMoE (Muennighoff et al., 2024): norms over whole rows of queries and keys, and many small experts."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are their probabilities."""
    decoder(r, Sight(r.rope("halves")), row_norm=True, router=r.router())
