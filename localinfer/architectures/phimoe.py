"""Phi-3.5-MoE (Microsoft, 2024): as phi3, with LayerNorms, biases and the SparseMixer router."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """The file has the LayerNorm epsilon under the RMSNorm key. If there is a sliding window, all layers have it."""
    g.uses_layer_norm = True
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves"), g.sliding_window()), router=g.router("sparse_mixer"))
    build_decoder(g, spec)
