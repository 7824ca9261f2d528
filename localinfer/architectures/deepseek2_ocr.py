"""The text model of DeepSeek-OCR (DeepSeek, 2025): as deepseek2, with Llama's attention in place of a latent one."""

from localinfer.graph.attention import whole_rope
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """As Llama, with many small experts and shared ones in all but the first layers."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(whole_rope(g, "halves")), router=read_router(g)))
