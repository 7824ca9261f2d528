"""ERNIE 4.5 MoE (Baidu, 2025): as Llama, with a dense first layer, a biased router and shared experts."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights. The router tensors determine which layers are mixtures of experts."""
    g.hparams.accept("interleave_moe_layer_step")
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")), router=read_router(g, normed=True))
    build_decoder(g, spec)
