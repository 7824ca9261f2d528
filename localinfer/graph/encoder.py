"""The encoder of the BERT family: post-norm layers with bidirectional attention and no output layer."""

from localinfer.graph.attention import qkv
from localinfer.graph.builder import AttentionSpec, Builder, Router, X
from localinfer.graph.feed_forward import feed_forward


def build_encoder(
    g: Builder[X], attention: AttentionSpec, *, activation: str, gated: bool, positions: bool = False,
    router: Router | None = None,
) -> None:  # fmt: skip
    """Build a whole encoder. Positions come from the attention or from learned `positions`. With a `router`, layers
    with a router tensor are mixtures of experts."""
    g.use_layer_norm()
    x = g.embeddings.tokens()
    if g.tensors.has("token_types.weight"):
        g.embeddings.add_token_types(x)
    if positions:
        g.embeddings.add_positions(x)
    g.norm(x, "token_embd_norm", in_place=True)
    for blk in g.blocks():
        q, k, v = qkv(g, x, blk)
        a = g.attend(blk, q, k, v, attention)
        g.matmul(a, f"{blk}attn_output", g.embedding_length, add_to=x)
        g.norm(x, f"{blk}attn_output_norm", in_place=True)
        g.point(x, f"{blk}resid_mid")
        if router and g.tensors.has(f"{blk}ffn_gate_inp.weight"):
            g.add(x, g.experts.apply(x, blk, router, activation, gated=gated))
        else:
            f = feed_forward(g, x, blk, activation, gated=gated)
            g.matmul(f, f"{blk}ffn_down", g.embedding_length, add_to=x)
        g.norm(x, f"{blk}layer_output_norm", in_place=True)
    g.output.final_states(x)
