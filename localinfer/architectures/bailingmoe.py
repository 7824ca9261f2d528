"""Ling (inclusionAI, 2025; Lite and Plus): Llama with many small experts beside shared ones in every layer."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with a softmax router. The file specifies whether its weights are normalized."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("interleaved")), router=read_router(g)))
