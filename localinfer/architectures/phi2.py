"""Phi-1, 1.5 and 2 (Microsoft, 2023): parallel branches behind one LayerNorm, a plain feed-forward network, biases
everywhere; some values of a head do not turn."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder

NORMS = {"attention": "attn_norm", "feed_forward": "attn_norm"}


def record(r: Recorder) -> None:
    """Biases are the file's."""
    decoder(r, Sight(r.rope("halves")), activation="gelu", gated=False, parallel=True, before=NORMS)
