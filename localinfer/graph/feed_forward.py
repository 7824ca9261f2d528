"""The feed-forward network of a layer."""

import math

import numpy as np

from localinfer.graph.builder import Block, Builder, PerLayer, X
from localinfer.graph.properties.hyperparameters import Hyperparameters, multiple_of_32

XIELU = "xielu"
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


def read_xielu(g: Builder[X], blk: Block) -> tuple[float, float, float, float]:
    """Return the parameters of a layer's xIELU: alpha_p, alpha_n, beta and eps. The file has both alphas before a
    softplus that makes them positive, and alpha_n without beta."""

    hparams = Hyperparameters(g.f, XIELU)  # the prefix of their keys

    def value(name: str) -> float:
        if not hparams.has(name):
            raise hparams.error(name, "is missing")
        found = PerLayer(hparams.numbers(name, g.block_count, lambda _: 0.0))[blk]
        if not math.isfinite(found):
            raise hparams.error(name, f"has {found}; all must be finite")
        return found

    beta = value("beta")
    return float(np.logaddexp(0, value("alpha_p"))), beta + float(np.logaddexp(0, value("alpha_n"))), beta, value("eps")


def feed_forward(
    g: Builder[X], h: X, blk: Block, activation: str, *, gated: bool = True, std_multiplier: float = -math.inf,
    length_counts_gate: bool = False,
) -> X:  # fmt: skip
    """Return act(gate . h) * (up . h), the input of ffn_down, or act(up . h) if not `gated`.

    Without a gate matrix, the gate is the first half of the rows of ffn_up. For `std_multiplier` see `Builder.gate`. If
    `length_counts_gate`, the file's feed-forward length is the number of rows of gate and up together.
    """
    n, up = multiple_of_32(g.hparams, "feed_forward_length", g.block_count, blk.number), f"{blk}ffn_up"
    n = g.tensors.n_rows(up) if length_counts_gate else n
    values: X | None
    if not gated:
        gate, values = g.matmul(h, up, n), None
    elif g.tensors.has(f"{up}.weight") and g.f.tensors[f"{up}.weight"].shape[0] == 2 * n:
        gate, values = g.slices(h, up, n, n)
        g.point(gate, f"{blk}ffn_gate")
        g.point(values, up)
    else:
        gate, values = g.matmuls(h, (f"{blk}ffn_gate", n), (up, n))
    if activation == XIELU:
        g.xielu(gate, *read_xielu(g, blk))
        activation = "none"
    y = g.gate(gate, values, activation, std_multiplier=std_multiplier)
    g.point(y, f"{blk}ffn_act")
    return y
