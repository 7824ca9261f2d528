"""LFM2 (Liquid AI, 2025): most layers mix tokens with a gated short convolution, some with attention."""

from localinfer.graph.buffers import Buffer
from localinfer.graph.decoder import AttentionSpec, BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.experts import Router
from localinfer.graph.graph_builder import GraphBuilder
from localinfer.graph.graph_builder_base import Block


def build(g: GraphBuilder, router: Router | None = None) -> None:
    """Layers without key heads have the convolution. A variant has experts."""
    n, width = g.embedding_length, g.hparams.count("shortconv.l_cache", maximum=64)

    def short_convolution(blk: Block, h: Buffer) -> BranchOutput | None:
        if blk.heads.count_kv:
            return None
        before, behind, x = g.slices(h, f"{blk}shortconv.in_proj", n, n, n)
        y = g.convolve(g.gate(x, before), f"{blk}shortconv.conv", width)
        return BranchOutput(g.gate(behind, y), "shortconv.out_proj")

    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves")),
        head_norm="before_rope",
        mixer=short_convolution,
        router=router,
        output_norm="token_embd_norm",
    )
    build_decoder(g, spec)
