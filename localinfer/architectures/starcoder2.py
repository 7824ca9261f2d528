"""StarCoder2 (BigCode, 2024): LayerNorms, a plain feed-forward network, biases everywhere."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """All layers have full attention, as in llama.cpp: GGUF has no key for the sliding window of the checkpoints."""
    g.use_layer_norm()
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation="gelu", gated=False)
    build_decoder(g, spec)
