"""DeepSeekMoE (DeepSeek, 2024), the first generation: Llama with dense first layers, and many small experts beside
shared ones."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with a softmax router, whose weights are not normalized."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("interleaved")), router=read_router(g)))
