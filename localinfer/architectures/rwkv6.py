"""RWKV-6 Finch (Peng et al., 2024): no attention. Each branch mixes a token with the one before it (token shift), the
time mixing in shares that depend on the token. It has a matrix-valued state per head with a decay per key dimension;
the channel mixing is a feed-forward network with squared ReLU and a gate."""

from localinfer.graph.builder import Builder, X
from localinfer.graph.properties.hyperparameters import multiple_of_32
from localinfer.graph.properties.recurrence import HEAD_NORM_EPS, require_token_shifts
from localinfer.graph.time_mixing import mixed_inputs


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
