"""Command R (Cohere, 2024): parallel branches after one LayerNorm without bias, and scaled logits. The larger model
normalises each head of queries and keys."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

ONE_NORM = {"attention": "attn_norm", "feed_forward": "attn_norm"}


def build(g: GraphBuilder) -> None:
    """Decoder with parallel branches; the logits are multiplied by `logit_scale`."""
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("interleaved")),
        parallel=True,
        pre_norms=ONE_NORM,
        head_norm="per_head" if g.has("blk.0.attn_q_norm.weight") else "none",
        logit_scale=g.hparams.positive("logit_scale", 1.0),
    )
    build_decoder(g, spec)
