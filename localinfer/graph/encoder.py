"""The encoder of the BERT family: post-norm layers with bidirectional attention and no output layer."""

from localinfer.graph.graph_builder import GraphBuilder
from localinfer.graph.rope import Rope


def encoder(
    g: GraphBuilder, *, activation: str, gated: bool, rope: Rope | None = None, positions: bool = False
) -> None:
    """Build a whole encoder. Positions come from a rotary embedding or from learned `positions`."""
    x = g.embed()
    if g.has("token_types.weight"):
        g.add_types(x)
    if positions:
        g.add_positions(x)
    g.norm(x, "token_embd_norm", in_place=True)
    for blk in g.blocks():
        q, k, v = g.qkv(x, blk)
        a = g.attend(blk, q, k, v, rope=rope)
        g.matmul(a, f"{blk}attn_output", g.embedding_length, add_to=x)
        g.norm(x, f"{blk}attn_output_norm", in_place=True)
        f = g.feed_forward(x, blk, activation, gated=gated)
        g.matmul(f, f"{blk}ffn_down", g.embedding_length, add_to=x)
        g.norm(x, f"{blk}layer_output_norm", in_place=True)
    g.final_states(x)
