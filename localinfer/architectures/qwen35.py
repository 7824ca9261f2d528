"""Qwen3.5 (Alibaba, 2026), the text model: three gated delta net layers for each layer with gated attention, which has
interleaved M-RoPE."""

from collections.abc import Sequence

from localinfer.graph.attention import mrope
from localinfer.graph.builder import AttentionSpec, Block, Builder, Router, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.properties.recurrence import read_recurrence
from localinfer.graph.properties.rope import SECTIONS_KEY

PERIOD = 4  # every fourth layer has attention, unless the file specifies otherwise


def build(g: Builder[X], router: Router | None = None, *, repeat_interleave: bool = False) -> None:
    """The variants have experts. With `repeat_interleave` (Qwen3-Next), value heads that share a key head are adjacent,
    and one matrix computes both alpha and beta.
    """
    period = g.hparams.count("full_attention_interval", PERIOD)
    recurrent = g.hparams.flags("attention.recurrent_layers", g.block_count, lambda block: (block + 1) % period != 0)
    shape = read_recurrence(g.hparams, "delta", repeat_interleave=repeat_interleave)
    rope = mrope(g, interleaved=True) if g.hparams.has(SECTIONS_KEY) else g.rope("halves")
    attention = AttentionSpec(rope, head_norm="before_rope")

    def inputs(blk: Block, h: X) -> Sequence[X]:
        """Return the queries, keys and values in one, the gate, alpha and beta."""
        wide = (f"{blk}attn_qkv", 2 * shape.n_keys + shape.n_values), (f"{blk}attn_gate", shape.n_values)
        if not repeat_interleave:
            return g.matmuls(h, *wide, (f"{blk}ssm_alpha", shape.heads), (f"{blk}ssm_beta", shape.heads))
        qkv, z, both = g.matmuls(h, *wide, (f"{blk}ssm_ba", 2 * shape.heads))
        beta, alpha = g.per_head.split_halves(both, shape.groups)
        g.point(alpha, f"{blk}ssm_alpha")
        g.point(beta, f"{blk}ssm_beta")
        return qkv, z, alpha, beta

    def gated_delta_net(blk: Block, h: X) -> BranchOutput[X]:
        qkv, z, alpha, beta = inputs(blk, h)
        qkv = g.recurrent.convolve(qkv, f"{blk}ssm_conv1d", shape.width, "silu")
        y = g.recurrent.recur(blk, qkv, alpha, beta, shape)
        g.norm_groups(y, shape.value, f"{blk}ssm_norm.weight", out=y)
        g.point(y, f"{blk}ssm_norm")
        return BranchOutput(g.gate(z, y, "silu"), "ssm_out")

    def gated_attention(blk: Block, h: X) -> BranchOutput[X]:
        heads = blk.heads
        n_q, n_k, n_v = 2 * heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
        both, k, v = g.matmuls(h, (f"{blk}attn_q", n_q), (f"{blk}attn_k", n_k), (f"{blk}attn_v", n_v))
        q, gate = g.per_head.split_halves(both, heads.count)
        y = g.attend(blk, q, k, v, attention)
        return BranchOutput(g.gate(gate, y, "sigmoid"), "attn_output")

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        is_mtp_layer = blk.number == g.block_count
        return gated_attention(blk, h) if is_mtp_layer or not recurrent[blk.number] else gated_delta_net(blk, h)

    pre_norms = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}
    spec = DecoderSpec(attention=attention, pre_norms=pre_norms, router=router, mtp_states="normed")
    build_decoder(g, spec, mixer)
