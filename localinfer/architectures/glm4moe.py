"""GLM-4.5 and 4.6 (Zhipu AI, 2025): as dots1, with biases and RoPE on half of each head. The larger model normalises
heads."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

NORMS = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}


def build(g: GraphBuilder) -> None:
    """Decoder with a sigmoid router, whose weights are normalised and scaled as the metadata says."""
    head_norm = "before_rope" if g.has("blk.0.attn_q_norm.weight") else "none"
    router = g.router("sigmoid", normed=True)
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves")),
        head_norm=head_norm,
        pre_norms=NORMS,
        qkv_bias=True,
        router=router,
    )
    build_decoder(g, spec)
