"""The inputs of the time mixing of RWKV-6 (Peng et al., 2024), composed of a builder's operations."""

from localinfer.graph.builder import Block, Builder, HeadInputs, X
from localinfer.graph.properties.hyperparameters import multiple_of_32

MIXED = 5  # inputs of a time mixing: of the decay, the key, the value, the receptance and the gate


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
