"""NeoBERT (Le Breton et al., 2025): Llama with bidirectional attention, and fused queries, keys and values."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Encoder with pre-norm branches and SwiGLU."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("interleaved")), output_norm="enc.output_norm"))
