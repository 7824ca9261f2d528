"""Command R (Cohere, 2024): parallel branches behind one LayerNorm without bias, and scaled logits; the larger one
normalises each head."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder

ONE_NORM = {"attention": "attn_norm", "feed_forward": "attn_norm"}


def record(r: Recorder) -> None:
    """The logits are multiplied by their scale."""
    decoder(
        r,
        Sight(r.rope("neighbours")),
        parallel=True,
        before=ONE_NORM,
        head_norm="each" if r.has("blk.0.attn_q_norm.weight") else "no",
        logit_scale=r.keys.positive("logit_scale", 1.0),
    )
