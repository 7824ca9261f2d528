"""Jamba (AI21, 2024): Mamba in most layers, attention without rotary embeddings in the others, and experts in some."""

from localinfer.architectures.mamba import selective_scan
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import has_router, read_router


def build(g: Builder[X]) -> None:
    """Layers without key heads are Mamba layers, layers with a router are mixtures of experts."""

    def mixer(blk: Block, h: X) -> BranchOutput[X] | None:
        return None if blk.heads.count_kv else BranchOutput(selective_scan(g, blk, h), "ssm_out")

    g.hparams.accept("expert_count", "expert_used_count")  # small models have one expert, and no router
    router = read_router(g) if has_router(g) else None
    build_decoder(g, DecoderSpec(attention=AttentionSpec(None), router=router), mixer)
