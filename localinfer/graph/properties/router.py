"""The router of a mixture of experts, as the metadata describes it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import GGUF
from localinfer.graph.properties.hyperparameters import Hyperparameters

TABLE = "ffn_gate_tid2eid.weight"  # of the experts that the number of a token chooses


@dataclass(frozen=True)
class Router:
    """How `used` of `count` experts are chosen for each token, and weighted.

    The router's logits are soft-capped at `logit_cap` unless that is 0. `gating` turns them into probabilities:
    "softmax", "sigmoid", "sqrt_softplus" (the square root of softplus), "softmax_of_chosen" (softmax over the chosen
    logits), "sigmoid_of_chosen" or "sparse_mixer" (Phi-3.5-MoE). In layers that have a table for it, the number of a
    token chooses its experts (`read_expert_table`). The weights are divided by their sum if `normed`, and multiplied by
    `scale`. They scale the experts' outputs, or with `weighs_inputs` their inputs.

    If experts are in `groups` of adjacent experts, only the `groups_used` groups with the highest scores are eligible.
    The score of a group is the sum of the probabilities of its `best_per_group` best experts, one or two.

    Every `per_adjugate` adjacent experts may share an adjugate expert (Grove MoE; Wu et al., 2025; 0: none), whose
    output, times `adjugate_scale`, is added to that of each of them.
    """

    count: int
    used: int
    gating: str = "softmax"
    normed: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    best_per_group: int = 2
    weighs_inputs: bool = False
    logit_cap: float = 0.0
    per_adjugate: int = 0
    adjugate_scale: float = 0.0


def router_bias(f: GGUF, prefix: str) -> str:
    """Return the name of the tensor that is added to the router's probabilities of a layer, only to choose experts, or
    "" if there is none. Files of some architectures lack the suffix."""
    names = (f"{prefix}exp_probs_b{suffix}" for suffix in (".bias", ""))
    return next((name for name in names if name in f.tensors), "")


def read_expert_table(f: GGUF, prefix: str, router: Router, n_vocab: int) -> NDArray[np.int32] | None:
    """Return the experts that the number of a token chooses in a layer, (n_vocab, used), or None if its router chooses
    (hash layers; Roller et al., 2021). Raises LocalInferError if the table is none of experts."""
    name = f"{prefix}{TABLE}"
    if name not in f.tensors:
        return None
    found, shape = f.tensors[name], (n_vocab, router.used)
    if found.shape != shape or found.type_name != "I32":
        what = f"has shape {list(found.shape)} and type {found.type_name}, not {list(shape)} and I32"
        raise f.error(f"tensor {name}", what)
    table: NDArray[np.int32] = found.data.view(np.int32).reshape(shape)
    if table.min() < 0 or table.max() >= router.count:
        raise f.error(f"tensor {name}", f"must have numbers of experts, 0 to {router.count - 1}")
    return table


def router_from_metadata(
    hparams: Hyperparameters, gating: str, *, normed: bool, best_per_group: int = 2, weighs_inputs: bool = False
) -> Router:
    """Return the router that the metadata describes; the arguments are the architecture's defaults."""
    count = hparams.count("expert_count")
    used = hparams.count("expert_used_count", maximum=count)
    groups = hparams.count("expert_group_count", 1, minimum=0) or 1
    groups_used = hparams.count("expert_group_used_count", groups, minimum=0, maximum=groups) or groups
    if count % groups or count // groups < best_per_group:
        raise hparams.error(
            "expert_group_count", f"is {groups}; groups of {best_per_group} or more must make up {count} experts"
        )
    if groups_used * (count // groups) < used:
        raise hparams.error("expert_group_used_count", f"is {groups_used}; {used} experts do not fit")
    functions = {0: gating, 1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen", 4: "sqrt_softplus"}
    number = hparams.count("expert_gating_func", 0, minimum=0)
    if number not in functions:
        raise hparams.unsupported("expert_gating_func", number)
    scale = hparams.number("expert_weights_scale", 1.0) or 1.0
    normed = hparams.flag("expert_weights_norm", normed)
    cap, gating = hparams.number("router_logit_softcapping", 0.0), functions[number]
    return Router(count, used, gating, normed, scale, groups, groups_used, best_per_group, weighs_inputs, cap)
