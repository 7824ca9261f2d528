"""GroveMoE (inclusionAI, 2025): qwen3moe, in which groups of adjacent experts share a small adjugate expert."""

from dataclasses import replace

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights, which are those of the adjugate experts, too."""
    router, size = read_router(g, normed=True), g.hparams.count("experts_per_group")
    if router.count % size:
        raise g.hparams.error("experts_per_group", f"is {size}; it must divide {router.count}")
    router = replace(router, per_adjugate=size, adjugate_scale=g.hparams.positive("expert_group_scale"))
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("halves"), head_norm="before_rope"), router=router))
