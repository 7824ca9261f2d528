"""LFM2 (Liquid AI, 2025): most layers mix tokens with a gated short convolution, some with attention."""

from localinfer.graph.builder import AttentionSpec, Block, Builder, Router, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder


def build(g: Builder[X], router: Router | None = None) -> None:
    """Layers without key heads have the convolution. A variant has experts."""
    n, width = g.embedding_length, g.hparams.count("shortconv.l_cache", maximum=64)

    def short_convolution(blk: Block, h: X) -> BranchOutput[X] | None:
        if blk.heads.count_kv:
            return None
        input_gate, output_gate, x = g.slices(h, f"{blk}shortconv.in_proj", n, n, n)
        g.point(input_gate, f"{blk}shortconv.input_gate")
        g.point(output_gate, f"{blk}shortconv.output_gate")
        y = g.recurrent.convolve(g.gate(x, input_gate), f"{blk}shortconv.conv", width)
        return BranchOutput(g.gate(output_gate, y), "shortconv.out_proj")

    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves"), head_norm="before_rope"),
        router=router,
        output_norm="token_embd_norm",
    )
    build_decoder(g, spec, short_convolution)
