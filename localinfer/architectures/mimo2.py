"""MiMo-V2 (Xiaomi, 2025): sliding-window layers with attention sinks, more heads of keys and another base, scaled
values, rotary embeddings on a part of each head, and many experts with a biased router."""

from dataclasses import replace

from localinfer.graph.attention import qkv, rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with a sigmoid router, whose weights are normalized, and dense first layers."""
    full, rope = AttentionSpec(g.rope("halves")), rope_swa(g, "halves", "rope.freq_base", "rope.dimension_count")
    local = replace(full, rope=rope, window=sliding_window(g))
    specs = sliding_layers(g, 0, mtp=True).choose(local, full)
    factor = g.hparams.positive("attention.value_scale", 1.0)

    def scaled_attention(blk: Block, h: X) -> BranchOutput[X]:
        q, k, v = qkv(g, h, blk)
        spec = replace(specs[blk], sinks=g.tensors.has(f"{blk}attn_sinks.weight"))
        y = g.attend(blk, q, k, v, spec)
        g.scale(y, factor)  # the same as with scaled values
        return BranchOutput(y, "attn_output")

    router = read_router(g, "sigmoid", normed=True)
    build_decoder(g, DecoderSpec(attention=specs, router=router, mtp_states="residual"), scaled_attention)
