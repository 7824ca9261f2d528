"""Phi-3.5-MoE (Microsoft, 2024): as phi3, with LayerNorms, biases and the SparseMixer router."""

from localinfer.graph.attention import sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """The file has the LayerNorm epsilon under the RMSNorm key. If there is a sliding window, all layers have it."""
    g.use_layer_norm()
    attention = AttentionSpec(g.rope("halves"), sliding_window(g))
    build_decoder(g, DecoderSpec(attention=attention, router=read_router(g, "sparse_mixer")))
