"""Phi-3 and Phi-4 (Microsoft, 2024): as Llama, with fused QKV and fused gate and up matrices. If there is a sliding
window, all layers have it."""

from localinfer.graph.attention_spec import AttentionSpec
from localinfer.graph.builder import Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.sliding_window import read_sliding_window


def build(g: Builder[X]) -> None:
    """RoPE is scaled by LongRoPE if the file has its factors."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves"), read_sliding_window(g.hparams)))
    build_decoder(g, spec)
