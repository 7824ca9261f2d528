"""Falcon (TII, 2023): parallel branches behind LayerNorms, one or two, and heads of queries that share a key head."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder

ONE_NORM = {"attention": "attn_norm", "feed_forward": "attn_norm"}
TWO_NORMS = {"attention": "attn_norm_2", "feed_forward": "attn_norm"}


def record(r: Recorder) -> None:
    """The gelu is the exact one."""
    norms = TWO_NORMS if r.has("blk.0.attn_norm_2.weight") else ONE_NORM
    decoder(r, Sight(r.rope("halves")), activation="gelu_erf", gated=False, parallel=True, before=norms)
