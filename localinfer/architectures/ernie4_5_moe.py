"""ERNIE 4.5 MoE (Baidu, 2025): as Llama, with a dense first layer, a biased router and shared experts."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with normalised expert weights. The router tensors tell which layers are mixtures of experts."""
    g.hparams.accept("interleave_moe_layer_step")
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")), router=g.router(normed=True))
    build_decoder(g, spec)
