"""RWKV-7 Goose (Peng et al., 2025): no attention. Each branch mixes a token with the one before it (token shift). The
time mixing has a matrix-valued state per head with a generalized delta rule; the channel mixing is a plain feed-forward
network with squared ReLU. All layers get the values of the first layer."""

from collections.abc import Callable

from localinfer.graph.builder import Block, Builder, HeadInputs, X
from localinfer.graph.properties.hyperparameters import multiple_of_32
from localinfer.graph.properties.recurrence import require_token_shifts

RANKS = {"w": "decay", "a": "iclr", "v": "value_residual_mix", "g": "gate"}


def build(g: Builder[X]) -> None:
    """Layers of time mixing and channel mixing."""
    g.use_layer_norm()
    require_token_shifts(g.hparams, 2)
    n, x = g.embedding_length, g.embeddings.tokens()
    g.norm(x, "token_embd_norm", in_place=True)
    time_mix = time_mixing(g, has_gate=True)
    for blk in g.blocks():
        y = time_mix(blk, g.norm(x, f"{blk}attn_norm"))
        g.matmul(y, f"{blk}time_mix_output", n, add_to=x)
        g.point(x, f"{blk}resid_mid")
        h = g.norm(x, f"{blk}attn_norm_2")
        previous = g.recurrent.token_shift(h, f"{blk}channel_mix_shift_state")
        [h] = g.recurrent.lerps(h, previous, f"{blk}channel_mix_lerp_k", 1)
        f = g.matmul(h, f"{blk}channel_mix_key", multiple_of_32(g.hparams, "feed_forward_length"))
        g.matmul(g.gate(f, None, "relu_squared"), f"{blk}channel_mix_value", n, add_to=x)
    g.output.logits(x)


def time_mixing(
    g: Builder[X], *, has_gate: bool, normed: bool = True, norm_eps: float | None = None
) -> Callable[[Block, X], X]:
    """Return the function that computes the time mixing of a layer from its input, without the output matrix. Call it
    before the first layer. For `normed` and `norm_eps` see `RecurrentOperations.time_mix`.

    Low-rank matrices compute the decay (w), the in-context learning rate (a), the value residual mix (v) and the gate
    (g).
    """
    n, count = g.embedding_length, 6 if has_gate else 5
    used = RANKS if has_gate else {kind: name for kind, name in RANKS.items() if kind != "g"}
    ranks = {kind: multiple_of_32(g.hparams, f"attention.{name}_lora_rank") for kind, name in used.items()}
    g.tensors.accept(*(f"blk.0.time_mix_v{number}.weight" for number in range(3)))
    first = g.cross_layer.buffer(n)

    def low_rank(blk: Block, x: X, kind: str, activation: str = "none") -> X:
        name = f"{blk}time_mix_{kind}"
        hidden = g.gate(g.matmul(x, f"{name}1", ranks[kind]), None, activation)
        y = g.matmul(hidden, f"{name}2", n)
        y = y if kind == "g" else g.add_vector(y, f"{name}0.weight")
        g.point(y, name)
        return y

    def time_mix(blk: Block, h: X) -> X:
        previous = g.recurrent.token_shift(h, f"{blk}time_mix_shift_state")
        xr, xw, xk, xv, xa, *xg = g.recurrent.lerps(h, previous, f"{blk}time_mix_lerp_fused", count)
        r = g.matmul(xr, f"{blk}time_mix_receptance", n)
        k, v = g.matmul(xk, f"{blk}time_mix_key", n), g.matmul(xv, f"{blk}time_mix_value", n)
        if blk.number == 0:
            g.cross_layer.copy(v, first)
        else:
            v = g.recurrent.lerp(v, first, g.gate(low_rank(blk, xv, "v"), None, "sigmoid"))
        inputs = HeadInputs(r, low_rank(blk, xw, "w", "tanh"), k, v, low_rank(blk, xa, "a"))
        y = g.recurrent.time_mix(blk, inputs, norm_eps, normed=normed)
        return g.gate(y, low_rank(blk, xg[0], "g", "sigmoid")) if has_gate else y

    return time_mix
