"""dots.llm1 (rednote, 2025): as qwen3moe, with shared experts, a dense first layer and a biased router."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with a sigmoid router, whose weights are normalised and scaled as the metadata says."""
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves")), head_norm="before_rope", router=g.router("sigmoid", normed=True)
    )
    build_decoder(g, spec)
