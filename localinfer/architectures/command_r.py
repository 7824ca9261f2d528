"""Command R (Cohere, 2024): parallel branches after one LayerNorm without bias, and scaled logits. The larger model
normalizes each head of queries and keys."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import ONE_NORM, DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Decoder with parallel branches; the logits are multiplied by `logit_scale`."""
    g.use_layer_norm()
    head_norm = "per_head" if g.tensors.has("blk.0.attn_q_norm.weight") else "none"
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("interleaved"), head_norm=head_norm),
        parallel=True,
        pre_norms=ONE_NORM,
        logit_scale=g.hparams.positive("logit_scale", 1.0),
    )
    build_decoder(g, spec)
