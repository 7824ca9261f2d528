"""Phi-1, 1.5 and 2 (Microsoft, 2023): parallel branches after one LayerNorm, a plain feed-forward network, biases
everywhere, partial RoPE."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder

NORMS = {"attention": "attn_norm", "feed_forward": "attn_norm"}


def build(g: Builder[X]) -> None:
    """Decoder with parallel branches and biases."""
    g.use_layer_norm()
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves")), activation="gelu", gated=False, parallel=True, pre_norms=NORMS
    )
    build_decoder(g, spec)
