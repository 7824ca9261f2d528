"""Kimi K3 (Kimi Team, 2026): as kimi-linear, with gates of the values of latent attention, attention residuals, experts
that process latent vectors, and SiTU as their activation function."""

from localinfer.graph.attention_residuals import ResidualBlocks
from localinfer.graph.builder import Builder, X
from localinfer.graph.delta_attention import delta_mixer
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.mixture_of_experts import expert_feed_forward, read_router
from localinfer.graph.properties.recurrence import read_kda


def build(g: Builder[X]) -> None:
    """Decoder with dense first layers; the file may have a limit of the logarithms of decays."""
    bounded, n = g.hparams.has("kda.gate_lower_bound"), g.embedding_length
    mixer = delta_mixer(g, read_kda(g.hparams, g.attention_heads[0].count, bounded=bounded), None)
    router, streams = read_router(g, "sigmoid", normed=True), ResidualBlocks(g, g.embeddings.tokens())
    beta, linear_beta = (g.hparams.positive(f"activation.situ_{name}") for name in ("beta", "linear_beta"))
    activation = f"situ:{beta}:{linear_beta}"
    g.hparams.accept("expert_latent_length")  # the tensor shapes have it, too
    for blk in g.blocks():
        h = g.norm(streams.read(f"{blk}attn_res_score"), f"{blk}attn_norm")
        y = g.matmul(mixer(blk, h).branch, f"{blk}attn_output", n)
        g.point(y, f"{blk}attn_out")
        streams.add_attention(blk, y)
        h = g.norm(streams.read(f"{blk}ffn_res_score"), f"{blk}ffn_norm")
        if g.tensors.has(f"{blk}ffn_gate_inp.weight"):
            y = expert_feed_forward(g, h, blk, router, activation)
        else:
            y = g.matmul(feed_forward(g, h, blk, activation), f"{blk}ffn_down", n)
        g.point(y, f"{blk}ffn_out")
        streams.add(y)
    g.output.logits(streams.read("output_res_score"))
