"""BitNet b1.58 2B4T (Microsoft, 2025): as bitnet, with gates of squared relu."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """As bitnet."""
    decoder(r, Sight(r.rope("halves")), activation="relu_squared", sub_norms=True)
