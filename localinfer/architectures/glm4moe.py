"""GLM-4.5 and 4.6 (Zhipu AI, 2025): as dots1, with biases; half of a head turns, the larger model normalises heads."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder

NORMS = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}


def record(r: Recorder) -> None:
    """The weights of the chosen are logistic functions, normalised and scaled as the file says."""
    head_norm = "before" if r.has("blk.0.attn_q_norm.weight") else "no"
    router = r.router("sigmoid", normed=True)
    decoder(r, Sight(r.rope("halves")), head_norm=head_norm, before=NORMS, qkv_bias=True, router=router)
