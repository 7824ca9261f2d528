"""RWKV-6 Finch (Peng et al., 2024): no attention. Each branch mixes a token with the one before it (token shift), the
time mixing in shares that depend on the token. It has a matrix-valued state per head with a decay per key dimension;
the channel mixing is a feed-forward network with squared ReLU and a gate."""

from localinfer.graph.builder import Block, Builder, HeadInputs, X
from localinfer.graph.properties.hyperparameters import multiple_of_32
from localinfer.graph.properties.recurrence import HEAD_NORM_EPS, require_token_shifts

MIXED = 5  # inputs of a time mixing: of the decay, the key, the value, the receptance and the gate


def build(g: Builder[X]) -> None:
    """The file halves the residual stream after some layers, so that it stays within the range of F16."""
    g.use_layer_norm()
    n, x = g.embedding_length, g.embeddings.tokens()
    require_token_shifts(g.hparams, 2)
    rescale_every = g.hparams.count("rescale_every_n_layers", 0, minimum=0)
    g.norm(x, "token_embd_norm", in_place=True)
    for blk in g.blocks():
        inputs, gate = mixed_inputs(g, blk, g.norm(x, f"{blk}attn_norm"), n)
        y = g.gate(gate, g.recurrent.time_mix(blk, inputs, HEAD_NORM_EPS), "silu")
        g.matmul(y, f"{blk}time_mix_output", n, add_to=x)
        g.point(x, f"{blk}resid_mid")
        h = g.norm(x, f"{blk}attn_norm_2")
        previous = g.recurrent.token_shift(h, f"{blk}channel_mix_shift_state")
        [key] = g.recurrent.lerps(h, previous, f"{blk}channel_mix_lerp_k", 1)
        [receptance] = g.recurrent.lerps(h, previous, f"{blk}channel_mix_lerp_r", 1)
        f = g.matmul(key, f"{blk}channel_mix_key", multiple_of_32(g.hparams, "feed_forward_length"))
        f = g.matmul(g.gate(f, None, "relu_squared"), f"{blk}channel_mix_value", n)
        g.add(x, g.gate(g.matmul(receptance, f"{blk}channel_mix_receptance", n), f, "sigmoid"))
        if rescale_every and (blk.number + 1) % rescale_every == 0:
            g.scale(x, 0.5)
    g.output.logits(x)


def mixed_inputs(g: Builder[X], blk: Block, h: X, n_kv: int) -> tuple[HeadInputs[X], X]:
    """Return the inputs of the time mixing of h, with `n_kv` keys and values of a token, and its gate. Low-rank
    matrices compute the shares of the previous token, and the decay."""
    n = g.embedding_length
    rank, decay_rank = (multiple_of_32(g.hparams, f"{name}_extra_dim") for name in ("time_mix", "time_decay"))
    previous = g.recurrent.token_shift(h, f"{blk}time_mix_shift_state")
    [mixed] = g.recurrent.lerps(h, previous, f"{blk}time_mix_lerp_x", 1)
    shares = g.gate(g.matmul(mixed, f"{blk}time_mix_w1", MIXED * rank), None, "tanh")
    shares = g.per_head.matmul(shares, f"{blk}time_mix_w2", MIXED, n)
    xw, xk, xv, xr, xg = g.recurrent.lerps(h, previous, f"{blk}time_mix_lerp_fused", MIXED, shares)
    r, k, v = (
        g.matmul(each, f"{blk}time_mix_{name}", length)
        for each, name, length in ((xr, "receptance", n), (xk, "key", n_kv), (xv, "value", n_kv))
    )
    w = g.gate(g.matmul(xw, f"{blk}time_mix_decay_w1", decay_rank), None, "tanh")
    w = g.matmul(w, f"{blk}time_mix_decay_w2", n)
    return HeadInputs(r, w, k, v), g.matmul(xg, f"{blk}time_mix_gate", n)
