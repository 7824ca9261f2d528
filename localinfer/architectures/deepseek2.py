"""DeepSeek-V2 and V3 (DeepSeek, 2024), R1, Kimi K2, GLM-4.7-Flash: multi-head latent attention and many small experts.

The large models also compress queries to a low rank. V3 adds a bias to the router's scores and ranks expert groups by
the sum of their two best experts; V2 ranks them by their best expert.
"""

from localinfer.graph.attention import latent_attention
from localinfer.graph.builder import AttentionSpec, Block, Builder, Router, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import has_experts, read_router
from localinfer.graph.properties.latent_attention import read_latent_shape


def build(g: Builder[X]) -> None:
    """Decoder with latent attention; the leading `leading_dense_block_count` layers have no experts."""
    dense = g.hparams.count("leading_dense_block_count", 0, minimum=0)
    is_v3 = g.tensors.has(f"blk.{min(dense, g.block_count - 1)}.exp_probs_b.bias")
    gating, best_per_group = ("sigmoid", 2) if is_v3 else ("softmax", 1)
    latent_decoder(g, read_router(g, gating, best_per_group=best_per_group) if has_experts(g) else None)


def latent_decoder(g: Builder[X], router: Router | None) -> None:
    """Build a decoder with multi-head latent attention, whose dimensions come from the file's metadata."""
    shape = read_latent_shape(g.hparams)
    attention = AttentionSpec(g.rope("interleaved", amplified=False), scale=shape.scale)

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        return BranchOutput(latent_attention(g, h, blk, shape, attention), "attn_output")

    build_decoder(g, DecoderSpec(attention=attention, router=router, mtp_states="normed"), mixer)
