"""StarCoder2 (BigCode, 2024): LayerNorms, a plain feed-forward network, biases everywhere."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """All layers have full attention, as in llama.cpp: GGUF has no key for the sliding window of the checkpoints."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation="gelu", gated=False)
    build_decoder(g, spec)
