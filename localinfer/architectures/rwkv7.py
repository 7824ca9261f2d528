"""RWKV-7 Goose (Peng et al., 2025): no attention. Each branch sees a token and the one before it, mixed in shares that
were learnt. One remembers in matrices, where a token replaces what it finds at its key; the other is a plain
feed-forward network of squared relu. All blocks are told the values of the first."""

from localinfer.plan.basics import Block, multiple_of_32
from localinfer.plan.buffers import Buffer
from localinfer.plan.recorder import Recorder
from localinfer.plan.time_mix import HeadInputs

RANKS = {"w": "decay", "a": "iclr", "v": "value_residual_mix", "g": "gate"}


def record(r: Recorder) -> None:
    """What is forgotten (w), replaced (a), taken of the first values (v) and let through (g) goes through narrow
    places."""
    n, x = r.embedding_length, r.embed()
    ranks = {kind: multiple_of_32(r.keys, f"attention.{name}_lora_rank") for kind, name in RANKS.items()}
    if r.keys.count("token_shift_count", 2) != 2:
        raise r.keys.refuse("token_shift_count", r.keys.count("token_shift_count"))
    r.norm(x, "token_embd_norm", in_place=True)
    r.ignore(*(f"blk.0.time_mix_v{number}.weight" for number in range(3)))
    first = r.lasting(n)

    def narrow(blk: Block, x: Buffer, kind: str, activation: str = "none") -> Buffer:
        name = f"{blk}time_mix_{kind}"
        inside = r.gate(r.matmul(x, f"{name}1", ranks[kind]), None, activation)
        y = r.matmul(inside, f"{name}2", n)
        return y if kind == "g" else r.add_vector(y, f"{name}0.weight")

    for blk in r.blocks():
        h = r.norm(x, f"{blk}attn_norm")
        xr, xw, xk, xv, xa, xg = r.lerps(h, r.shift(h), f"{blk}time_mix_lerp_fused", 6)
        q = r.matmul(xr, f"{blk}time_mix_receptance", n)
        k, v = r.matmul(xk, f"{blk}time_mix_key", n), r.matmul(xv, f"{blk}time_mix_value", n)
        if blk.number == 0:
            r.copy(v, first)
        else:
            v = r.lerp(v, first, r.gate(narrow(blk, xv, "v"), None, "sigmoid"))
        y = r.time_mix(blk, HeadInputs(q, narrow(blk, xw, "w", "tanh"), k, v, narrow(blk, xa, "a")))
        r.matmul(r.gate(y, narrow(blk, xg, "g", "sigmoid")), f"{blk}time_mix_output", n, add_to=x)
        h = r.norm(x, f"{blk}attn_norm_2")
        [h] = r.lerps(h, r.shift(h), f"{blk}channel_mix_lerp_k", 1)
        f = r.matmul(h, f"{blk}channel_mix_key", multiple_of_32(r.keys, "feed_forward_length"))
        r.matmul(r.gate(f, None, "relu_squared"), f"{blk}channel_mix_value", n, add_to=x)
    r.logits(x)
