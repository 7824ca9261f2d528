"""BitNet b1.58 (Ma et al., 2024): as llama, with ternary weights, and norms before the last matrix of each branch."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The first models, as llama.cpp has them."""
    decoder(r, Sight(r.rope("halves")), sub_norms=True)
