"""Layers of Qwen3-Next and its successors, composed of a builder's operations: gated delta nets (Yang et al., 2024),
and attention whose heads have gates."""

from collections.abc import Sequence

from localinfer.graph.builder import AttentionSpec, Block, Builder, Recurrence, X


def gated_delta_net(g: Builder[X], h: X, blk: Block, shape: Recurrence, activation: str) -> X:
    """Return the output of the heads of a gated delta net, after their norm and gates with this activation."""
    qkv, z, alpha, beta = delta_inputs(g, h, blk, shape)
    qkv = g.recurrent.convolve(qkv, f"{blk}ssm_conv1d", shape.width, "silu")
    y = g.recurrent.recur(blk, qkv, alpha, beta, shape)
    g.norm_groups(y, shape.value, f"{blk}ssm_norm.weight", out=y)
    g.point(y, f"{blk}ssm_norm")
    return g.gate(z, y, activation)


def delta_inputs(g: Builder[X], h: X, blk: Block, shape: Recurrence) -> Sequence[X]:
    """Return the queries, keys and values in one, the gate, alpha and beta. One matrix may compute both of these."""
    wide = (f"{blk}attn_qkv", 2 * shape.n_keys + shape.n_values), (f"{blk}attn_gate", shape.n_values)
    if not g.tensors.has(f"{blk}ssm_ba.weight"):
        return g.matmuls(h, *wide, (f"{blk}ssm_alpha", shape.heads), (f"{blk}ssm_beta", shape.heads))
    qkv, z, both = g.matmuls(h, *wide, (f"{blk}ssm_ba", 2 * shape.heads))
    beta, alpha = g.per_head.split_halves(both, shape.groups)
    g.point(alpha, f"{blk}ssm_alpha")
    g.point(beta, f"{blk}ssm_beta")
    return qkv, z, alpha, beta


def attend_with_gates(g: Builder[X], h: X, blk: Block, spec: AttentionSpec) -> X:
    """Return the output of attention heads, times their gates, which the matrix of queries computes, too."""
    heads = blk.heads
    n_q, n_k, n_v = 2 * heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
    both, k, v = g.matmuls(h, (f"{blk}attn_q", n_q), (f"{blk}attn_k", n_k), (f"{blk}attn_v", n_v))
    q, gate = g.per_head.split_halves(both, heads.count)
    return g.gate(gate, g.attend(blk, q, k, v, spec), "sigmoid")
