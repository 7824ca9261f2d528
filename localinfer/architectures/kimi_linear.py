"""Kimi Linear (Kimi Team, 2025): Kimi Delta Attention (KDA) in most layers, latent attention without rotary embeddings
in the others, and many small experts."""

from collections.abc import Callable

from localinfer.graph.attention import latent_attention
from localinfer.graph.builder import AttentionSpec, Block, Builder, Recurrence, Rope, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router
from localinfer.graph.properties.latent_attention import read_latent_shape
from localinfer.graph.properties.recurrence import read_kda


def build(g: Builder[X]) -> None:
    """Decoder with a sigmoid router, whose decays have no limit."""
    delta_decoder(g, read_kda(g.hparams, g.attention_heads[0].count, bounded=False), None)


def delta_decoder(g: Builder[X], shape: Recurrence, rope: Rope | None) -> None:
    """Build a decoder whose layers have KDA where the file has no key heads, and else latent attention, with a gate for
    each head where the file has one."""
    latent = read_latent_shape(g.hparams)
    attention, delta = AttentionSpec(rope, scale=latent.scale), delta_attention(g, shape)

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        if not blk.heads.count_kv:
            return delta(blk, h)
        y = latent_attention(g, h, blk, latent, attention)
        if g.tensors.has(f"{blk}attn_gate.weight"):
            g.per_head.gate(y, g.matmul(h, f"{blk}attn_gate", blk.heads.count), blk.heads.count, "sigmoid")
        return BranchOutput(y, "attn_output")

    router = read_router(g, "sigmoid", normed=True)
    build_decoder(g, DecoderSpec(attention=attention, router=router, mtp_states="normed"), mixer)


def delta_attention(g: Builder[X], shape: Recurrence) -> Callable[[Block, X], BranchOutput[X]]:
    """Return Kimi Delta Attention, a branch of a layer."""

    def low_rank(blk: Block, h: X, name: str) -> X:
        """Return the product of two narrow matrices, or of one for all heads."""
        first, second = f"{blk}{name}_a", f"{blk}{name}_b"
        if not g.tensors.has(f"{second}.weight"):
            return g.matmul(h, first, shape.n_values)
        return g.matmul(g.matmul(h, first, g.tensors.n_rows(first)), second, shape.n_values)

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        products = [g.matmul(h, f"{blk}attn_{name}", shape.n_values) for name in "qkv"]
        q, k, v = (
            g.recurrent.convolve(x, f"{blk}ssm_conv1d_{name}", shape.width, "silu")
            for name, x in zip("qkv", products, strict=True)
        )
        beta = g.matmul(h, f"{blk}ssm_beta", shape.heads)
        y = g.recurrent.recur(blk, g.per_head.join(1, q, k, v), low_rank(blk, h, "ssm_f"), beta, shape)
        g.norm_groups(y, shape.value, f"{blk}ssm_norm.weight", out=y)
        g.point(y, f"{blk}ssm_norm")
        return BranchOutput(g.gate(low_rank(blk, h, "ssm_g"), y, "sigmoid"), "attn_output")

    return mixer
