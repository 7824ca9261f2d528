"""Qwen3.5 (Alibaba, 2026), the text model: three blocks of a gated delta net for each with gated attention."""

from localinfer.plan.basics import Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.decoder import Mixed, Sight, decoder
from localinfer.plan.experts import Router
from localinfer.plan.recorder import Recorder

PERIOD = 4  # the last of every four blocks has attention, unless the file says otherwise


def record(r: Recorder, router: Router | None = None, *, neighbours: bool = False) -> None:
    """Positions in pictures, for which the file says how pairs are shared out, are those of text here: all the same.

    Others of its kind have experts, and heads of values that share a key as `neighbours`, with one matrix for how fast
    these learn and forget.
    """
    r.keys.name("rope.dimension_sections")
    period = r.keys.count("full_attention_interval", PERIOD)
    recurrent = r.keys.flags("attention.recurrent_layers", r.block_count, lambda block: (block + 1) % period != 0)
    shape, rope = r.recurrence("delta", neighbours=neighbours), r.rope("halves")

    def rates(blk: Block, h: Buffer) -> tuple[Buffer, Buffer]:
        if neighbours:
            beta, alpha = r.halves(r.matmul(h, f"{blk}ssm_ba", 2 * shape.heads), shape.groups)
            return alpha, beta
        return r.matmul(h, f"{blk}ssm_alpha", shape.heads), r.matmul(h, f"{blk}ssm_beta", shape.heads)

    def gated_delta_net(blk: Block, h: Buffer) -> Mixed:
        qkv = r.matmul(h, f"{blk}attn_qkv", 2 * shape.n_keys + shape.n_values)
        z = r.matmul(h, f"{blk}attn_gate", shape.n_values)
        alpha, beta = rates(blk, h)
        qkv = r.convolve(qkv, f"{blk}ssm_conv1d", shape.width, "silu")
        y = r.recur(blk, qkv, alpha, beta, shape)
        r.norm_parts(y, shape.value, f"{blk}ssm_norm.weight", into=y)
        return Mixed(r.gate(z, y, "silu"), "ssm_out")

    def gated_attention(blk: Block, h: Buffer) -> Mixed:
        heads = blk.heads
        q, gate = r.halves(r.matmul(h, f"{blk}attn_q", 2 * heads.count * heads.key), heads.count)
        k = r.matmul(h, f"{blk}attn_k", heads.count_kv * heads.key)
        v = r.matmul(h, f"{blk}attn_v", heads.count_kv * heads.value)
        y = r.attend(blk, q, k, v, rope=rope, norm="before")
        return Mixed(r.gate(gate, y, "sigmoid"), "attn_output")

    def mixer(blk: Block, h: Buffer) -> Mixed:
        looks_ahead = blk.number == r.block_count
        return gated_attention(blk, h) if looks_ahead or not recurrent[blk.number] else gated_delta_net(blk, h)

    before = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}
    decoder(r, Sight(rope), before=before, mixer=mixer, router=router)
