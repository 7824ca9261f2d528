"""dots3 note (rednote, 2026): latent attention with a sigmoid gate for each head, sparse as in deepseek32, but with a
sliding window, other sizes and another RoPE base in most layers; many experts with a biased router."""

from functools import partial

from localinfer.graph.attention import latent_attention, rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder, gate_heads
from localinfer.graph.indexer import read_indexer
from localinfer.graph.mixture_of_experts import read_router
from localinfer.graph.properties.latent_attention import read_latent_shape


def build(g: Builder[X]) -> None:
    """Layers without a sliding window have an indexer, which rotates halves of its heads. The MTP layer is one with a
    window."""
    g.hparams.accept("attention.indexer.types")  # these layers
    sliding, select = sliding_layers(g, 0, mtp=True), read_indexer(g, "halves")
    full, local = read_latent_shape(g.hparams), read_latent_shape(g.hparams, "_swa")
    sparse = AttentionSpec(g.rope("interleaved", amplified=False), scale=full.scale, selected=True)
    rope = rope_swa(g, "interleaved", size="rope.dimension_count")
    windowed = AttentionSpec(rope, scale=local.scale, window=sliding_window(g))
    shapes, specs = sliding.choose(local, full), sliding.choose(windowed, sparse)

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        selects = None if sliding[blk] else partial(select, blk, h)
        y = latent_attention(g, h, blk, shapes[blk], specs[blk], selects)
        return BranchOutput(gate_heads(g, h, blk, y, shapes[blk].value_dim, "sigmoid"), "attn_output")

    build_decoder(g, DecoderSpec(attention=specs, router=read_router(g, "sigmoid"), mtp_states="normed"), mixer)
