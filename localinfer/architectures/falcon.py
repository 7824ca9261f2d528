"""Falcon (TII, 2023): parallel branches after one or two LayerNorms, and multi-query or grouped-query attention."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import ONE_NORM, DecoderSpec, build_decoder

TWO_NORMS = {"attention": "attn_norm_2", "feed_forward": "attn_norm"}


def build(g: Builder[X]) -> None:
    """Decoder with parallel branches and the exact GELU."""
    g.use_layer_norm()
    norms = TWO_NORMS if g.tensors.has("blk.0.attn_norm_2.weight") else ONE_NORM
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves")),
        activation="gelu_erf",
        gated=False,
        parallel=True,
        pre_norms=norms,
    )
    build_decoder(g, spec)
