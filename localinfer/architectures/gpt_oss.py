"""gpt-oss (OpenAI, 2025): experts with biases, layers with a window in turn with layers that see everything, and heads
that can also look at nothing."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder

NORMS = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}
PATTERN = 2  # the last of every two blocks sees the whole context


def record(r: Recorder) -> None:
    """The weights of the chosen are the softmax of their logits; all layers have the same rotary embedding."""
    rope = r.rope("halves", truncate=False)
    sights = [Sight(rope, r.sliding_window() if sliding else 0) for sliding in r.sliding(PATTERN)]
    decoder(
        r, sights, activation="clamped_swiglu", before=NORMS, router=r.router("softmax_of_chosen"), sinks=True,
    )  # fmt: skip
