"""The encoder that BERT's family shares: each branch joins the stream, and then that is normalised.

Tokens see the whole text, and there is no output layer: what they have become is what the model gives.
"""

from localinfer.plan.recorder import Recorder
from localinfer.plan.rope import Rope


def encoder(r: Recorder, *, activation: str, gated: bool, rope: Rope | None = None, positions: bool = False) -> None:
    """Record a whole forward pass: distances are told by a rotary embedding, or by learned `positions`."""
    x = r.embed()
    if r.has("token_types.weight"):
        r.add_types(x)
    if positions:
        r.add_positions(x)
    r.norm(x, "token_embd_norm", in_place=True)
    for blk in r.blocks():
        q, k, v = r.qkv(x, blk)
        a = r.attend(blk, q, k, v, rope=rope)
        r.matmul(a, f"{blk}attn_output", r.embedding_length, add_to=x)
        r.norm(x, f"{blk}attn_output_norm", in_place=True)
        f = r.feed_forward(x, blk, activation, gated=gated)
        r.matmul(f, f"{blk}ffn_down", r.embedding_length, add_to=x)
        r.norm(x, f"{blk}layer_output_norm", in_place=True)
    r.states(x)
