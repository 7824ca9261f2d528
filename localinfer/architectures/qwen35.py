"""Qwen3.5 (Alibaba, 2026), the text model: three gated delta net layers for each layer with gated attention."""

from localinfer.graph.buffers import Buffer
from localinfer.graph.decoder import AttentionSpec, BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.experts import Router
from localinfer.graph.graph_builder import GraphBuilder
from localinfer.graph.graph_builder_base import Block

PERIOD = 4  # every fourth layer has attention, unless the file says otherwise


def build(g: GraphBuilder, router: Router | None = None, *, repeat_interleave: bool = False) -> None:
    """For text, M-RoPE is the same as RoPE, so the section sizes are not used.

    The variants have experts. With `repeat_interleave` (Qwen3-Next), value heads that share a key head are adjacent,
    and one matrix computes both alpha and beta.
    """
    g.hparams.accept("rope.dimension_sections")
    period = g.hparams.count("full_attention_interval", PERIOD)
    recurrent = g.hparams.flags("attention.recurrent_layers", g.block_count, lambda block: (block + 1) % period != 0)
    shape, rope = g.recurrence("delta", repeat_interleave=repeat_interleave), g.rope("halves")

    def rates(blk: Block, h: Buffer) -> tuple[Buffer, Buffer]:
        if repeat_interleave:
            beta, alpha = g.split_halves(g.matmul(h, f"{blk}ssm_ba", 2 * shape.heads), shape.groups)
            return alpha, beta
        return g.matmul(h, f"{blk}ssm_alpha", shape.heads), g.matmul(h, f"{blk}ssm_beta", shape.heads)

    def gated_delta_net(blk: Block, h: Buffer) -> BranchOutput:
        qkv = g.matmul(h, f"{blk}attn_qkv", 2 * shape.n_keys + shape.n_values)
        z = g.matmul(h, f"{blk}attn_gate", shape.n_values)
        alpha, beta = rates(blk, h)
        qkv = g.convolve(qkv, f"{blk}ssm_conv1d", shape.width, "silu")
        y = g.recur(blk, qkv, alpha, beta, shape)
        g.norm_groups(y, shape.value, f"{blk}ssm_norm.weight", out=y)
        return BranchOutput(g.gate(z, y, "silu"), "ssm_out")

    def gated_attention(blk: Block, h: Buffer) -> BranchOutput:
        heads = blk.heads
        q, gate = g.split_halves(g.matmul(h, f"{blk}attn_q", 2 * heads.count * heads.key), heads.count)
        k = g.matmul(h, f"{blk}attn_k", heads.count_kv * heads.key)
        v = g.matmul(h, f"{blk}attn_v", heads.count_kv * heads.value)
        y = g.attend(blk, q, k, v, rope=rope, norm="before_rope")
        return BranchOutput(g.gate(gate, y, "sigmoid"), "attn_output")

    def mixer(blk: Block, h: Buffer) -> BranchOutput:
        is_mtp_layer = blk.number == g.block_count
        return gated_attention(blk, h) if is_mtp_layer or not recurrent[blk.number] else gated_delta_net(blk, h)

    pre_norms = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}
    spec = DecoderSpec(attention=AttentionSpec(rope), pre_norms=pre_norms, mixer=mixer, router=router)
    build_decoder(g, spec)
