"""DeepSeek-V2 and V3 (DeepSeek, 2024), R1, Kimi K2, GLM-4.7-Flash: multi-head latent attention and many small experts.

The large models also compress queries to a low rank. V3 adds a bias to the router's scores and ranks expert groups by
the sum of their two best experts; V2 ranks them by their best expert.
"""

from localinfer.graph.buffers import Buffer
from localinfer.graph.decoder import AttentionSpec, BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.experts import Router
from localinfer.graph.graph_builder import GraphBuilder
from localinfer.graph.graph_builder_base import Block


def build(g: GraphBuilder) -> None:
    """Decoder with latent attention; the leading `leading_dense_block_count` layers have no experts."""
    dense = g.hparams.count("leading_dense_block_count", 0, minimum=0)
    is_v3 = g.has(f"blk.{min(dense, g.block_count - 1)}.exp_probs_b.bias")
    router = g.router("sigmoid" if is_v3 else "softmax", best_per_group=2 if is_v3 else 1) if g.has_experts else None
    latent_decoder(g, router)


def latent_decoder(g: GraphBuilder, router: Router | None) -> None:
    """Build a decoder with multi-head latent attention, whose dimensions come from the file's metadata."""
    shape, rope = g.latent_shape(), g.rope("interleaved", amplified=False)

    def latent_attention(blk: Block, h: Buffer) -> BranchOutput:
        n = blk.heads.count
        q_input = h
        if g.has(f"{blk}attn_q_a.weight"):
            rank = g.hparams.count("attention.q_lora_rank")
            q_input = g.norm(g.matmul(h, f"{blk}attn_q_a", rank), f"{blk}attn_q_a_norm")
        q = g.matmul(
            q_input, f"{blk}attn_q" if q_input is h else f"{blk}attn_q_b", n * (shape.nope_dim + shape.rope_dim)
        )
        q_nope, q_rope = g.split(q, n, shape.nope_dim, shape.rope_dim)
        q = g.join(n, q_rope, g.head_matmul(q_nope, f"{blk}attn_k_b", n, shape.rank))
        latent, k_rope = g.slices(h, f"{blk}attn_kv_a_mqa", shape.rank, shape.rope_dim)
        k = g.join(1, k_rope, g.norm(latent, f"{blk}attn_kv_a_norm"))
        y = g.attend(blk, q, k, rope=rope, scale=shape.scale)
        return BranchOutput(g.head_matmul(y, f"{blk}attn_v_b", n, shape.value_dim), "attn_output")

    spec = DecoderSpec(attention=AttentionSpec(rope), mixer=latent_attention, router=router)
    build_decoder(g, spec)
