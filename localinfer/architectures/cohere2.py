"""Command R7B and Command A (Cohere, 2024): as command-r, with three sliding layers for each that sees everything, and
these know no distances."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder

ONE_NORM = {"attention": "attn_norm", "feed_forward": "attn_norm"}
PATTERN = 4


def record(r: Recorder) -> None:
    """The logits are multiplied by their scale."""
    everything, nearby = Sight(None), Sight(r.rope("neighbours"), r.sliding_window())
    sights = [nearby if sliding else everything for sliding in r.sliding(PATTERN)]
    decoder(r, sights, parallel=True, before=ONE_NORM, logit_scale=r.keys.positive("logit_scale", 1.0))
