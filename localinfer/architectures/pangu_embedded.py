"""openPangu Embedded (Huawei, 2025): Llama with biases in the attention and NeoX-style rotary embeddings."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Biases are used where the file has them."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("halves"))))
