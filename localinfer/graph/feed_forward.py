"""The feed-forward network of a layer."""

import math

from localinfer.graph.builder import Block, Builder, X
from localinfer.graph.properties.hyperparameters import multiple_of_32

ACTIVATIONS = {  # by their names in config.json
    "gelu": "gelu_erf", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "silu",
    "swish": "silu", "geglu": "gelu_erf", "swiglu": "silu",
}  # fmt: skip


def read_activation(g: Builder[X], default: str) -> str:
    """Return the activation that the file names, or the default."""
    name = g.hparams.text("hidden_activation", "")
    if name and name not in ACTIVATIONS:
        raise g.hparams.unsupported("hidden_activation", repr(name))
    return ACTIVATIONS[name] if name else default


def feed_forward(
    g: Builder[X], h: X, blk: Block, activation: str, *, gated: bool = True, std_multiplier: float = -math.inf
) -> X:
    """Return act(gate . h) * (up . h), the input of ffn_down, or act(up . h) if not `gated`.

    Without a gate matrix, the gate is the first half of the rows of ffn_up. For `std_multiplier` see `Builder.gate`.
    """
    n, up = multiple_of_32(g.hparams, "feed_forward_length", g.block_count, blk.number), f"{blk}ffn_up"
    values: X | None
    if not gated:
        gate, values = g.matmul(h, up, n), None
    elif g.tensors.has(f"{up}.weight") and g.f.tensors[f"{up}.weight"].shape[0] == 2 * n:
        gate, values = g.slices(h, up, n, n)
        g.point(gate, f"{blk}ffn_gate")
        g.point(values, up)
    else:
        gate, values = g.matmul(h, f"{blk}ffn_gate", n, barrier=False), g.matmul(h, up, n)
    y = g.gate(gate, values, activation, std_multiplier=std_multiplier)
    g.point(y, f"{blk}ffn_act")
    return y
