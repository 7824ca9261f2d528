"""Phi-3.5-MoE (Microsoft, 2024): as phi3, with LayerNorms, biases and the SparseMixer router."""

from localinfer.graph.attention_spec import AttentionSpec
from localinfer.graph.builder import Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router
from localinfer.graph.sliding_window import read_sliding_window


def build(g: Builder[X]) -> None:
    """The file has the LayerNorm epsilon under the RMSNorm key. If there is a sliding window, all layers have it."""
    g.uses_layer_norm = True
    attention = AttentionSpec(g.rope("halves"), read_sliding_window(g.hparams))
    build_decoder(g, DecoderSpec(attention=attention, router=read_router(g, "sparse_mixer")))
