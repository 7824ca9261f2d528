"""gpt-oss (OpenAI, 2025): experts with biases, alternating sliding windows, and a learned attention sink per head."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

NORMS = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}
PATTERN = 2  # every second layer has full attention


def build(g: GraphBuilder) -> None:
    """Expert weights are the softmax of the chosen logits. All layers have the same rotary embedding."""
    rope = g.rope("halves", truncate=False)
    specs = [AttentionSpec(rope, g.sliding_window() if sliding else 0) for sliding in g.sliding_layers(PATTERN)]
    spec = DecoderSpec(
        attention=specs,
        activation="clamped_swiglu",
        pre_norms=NORMS,
        router=g.router("softmax_of_chosen"),
        sinks=True,
    )
    build_decoder(g, spec)
