"""Kimi Delta Attention (KDA; Kimi Team, 2025) in some layers, and latent attention in the others, composed of a
builder's operations."""

from collections.abc import Callable

from localinfer.graph.attention import latent_attention
from localinfer.graph.builder import AttentionSpec, Block, Builder, Recurrence, Rope, X
from localinfer.graph.decoder import BranchOutput, gate_heads
from localinfer.graph.properties.latent_attention import read_latent_shape


def delta_mixer(
    g: Builder[X], shape: Recurrence, rope: Rope | None
) -> Callable[[Block, X], BranchOutput[X]]:
    """Return KDA for the layers that have no key heads in the file, and latent attention for the others, with gates of
    heads where the file has them."""
    latent = read_latent_shape(g.hparams)
    attention = AttentionSpec(rope, scale=latent.scale)

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        if not blk.heads.count_kv:
            return BranchOutput(delta_attention(g, h, blk, shape), "attn_output")
        y = latent_attention(g, h, blk, latent, attention)
        if g.tensors.has(f"{blk}attn_gate.weight"):
            y = gate_heads(g, h, blk, y, latent.value_dim, "sigmoid")
        return BranchOutput(y, "attn_output")

    return mixer


def delta_attention(g: Builder[X], h: X, blk: Block, shape: Recurrence) -> X:
    """Return the output of the heads of KDA. The matrices of its decays, ssm_f, and gates, ssm_g, may each be the
    product of two narrow ones."""
    products = g.matmuls(h, *((f"{blk}attn_{name}", shape.n_values) for name in "qkv"))
    q, k, v = (
        g.recurrent.convolve(x, f"{blk}ssm_conv1d_{name}", shape.width, "silu")
        for name, x in zip("qkv", products, strict=True)
    )
    beta = g.matmul(h, f"{blk}ssm_beta", shape.heads)
    decays = low_rank(g, h, f"{blk}ssm_f", shape.n_values)
    y = g.recurrent.recur(blk, g.per_head.join(1, q, k, v), decays, beta, shape)
    g.norm_groups(y, shape.value, f"{blk}ssm_norm.weight", out=y)
    g.point(y, f"{blk}ssm_norm")
    return g.gate(low_rank(g, h, f"{blk}ssm_g", shape.n_values), y, "sigmoid")


def low_rank(g: Builder[X], h: X, name: str, n_out: int) -> X:
    """Return the product with the matrix `name`, with `name`_a, or with `name`_a and then `name`_b."""
    first, second = f"{name}_a", f"{name}_b"
    if g.tensors.has(f"{second}.weight"):
        return g.matmul(g.matmul(h, first, g.tensors.n_rows(first)), second, n_out)
    return g.matmul(h, first if g.tensors.has(f"{first}.weight") else name, n_out)
