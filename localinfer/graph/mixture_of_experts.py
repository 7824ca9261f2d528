"""Mixture of experts, composed of a builder's operations: the router, and the shared expert."""

import math

from localinfer.gguf.reader import GGUF, Tensor
from localinfer.graph.builder import Block, Builder, PerLayer, Router, X
from localinfer.graph.properties.mtp import mtp_entry
from localinfer.graph.properties.router import router_from_metadata

LIMITED = "silu_of_limited"  # SiLU of gates that are limited before
LIMITS, SHARED_LIMITS = "swiglu_clamp_exp", "swiglu_clamp_shexp"


def has_experts(g: Builder[X]) -> bool:
    """Return whether the model is a mixture of experts."""
    return g.hparams.count("expert_count", 0, minimum=0) > 0


def has_router(g: Builder[X]) -> bool:
    """Return whether a layer is a mixture of experts."""
    return any(g.tensors.has(f"blk.{number}.ffn_gate_inp.weight") for number in range(g.block_count))


def read_router(
    g: Builder[X],
    gating: str = "softmax",
    *,
    normed: bool = False,
    best_per_group: int = 2,
    weighs_inputs: bool = False,
) -> Router:
    """Return the router that the metadata describes; the arguments are the architecture's defaults. `best_per_group`
    experts determine the score of an expert group."""
    if not has_router(g):
        raise g.hparams.error("expert_count", "is set, but no layer has a router")
    g.hparams.accept("leading_dense_block_count")  # these layers have no router
    return router_from_metadata(
        g.hparams, gating, normed=normed, best_per_group=best_per_group, weighs_inputs=weighs_inputs
    )


def limited_activations(g: Builder[X], activation: str, key: str) -> PerLayer[str]:
    """Return the activation of each layer and of the MTP layer: a limited one with the limit that the file has at
    `key`, or SiLU for 0. Files may have no limit of the MTP layer."""
    limits = g.hparams.numbers(key, g.block_count, lambda _: 0.0)
    of_mtp_layer = mtp_entry(g.hparams, key, g.block_count) or 0.0
    if not all(0 <= limit < math.inf for limit in (*limits, of_mtp_layer)):
        raise g.hparams.error(key, "must be finite numbers, none below 0")
    return PerLayer(limits, of_mtp_layer).map(lambda limit: f"{activation}:{limit}" if limit else "silu")


def limited_swiglu(g: Builder[X]) -> tuple[PerLayer[str], PerLayer[str]]:
    """Return the activations of the experts of each layer, whose gates are limited before SiLU, and those of the shared
    experts, which are the same unless the file has limits of their own."""
    limited = limited_activations(g, LIMITED, LIMITS)
    return limited, limited_activations(g, LIMITED, SHARED_LIMITS) if g.hparams.has(SHARED_LIMITS) else limited


def shared_expert(g: Builder[X], h: X, blk: Block, activation: str, *, gated: bool = True) -> X:
    """Return the output of the shared expert, multiplied by its sigmoid gate if it has one. If it is `gated` and lacks
    a gate matrix, the gate is the first half of the rows of ffn_up_shexp."""
    g.hparams.accept("expert_shared_feed_forward_length", "expert_shared_count")  # the tensor shapes imply their values
    up, router = f"{blk}ffn_up_shexp", f"{blk}ffn_gate_inp_shexp"
    n = g.tensors.n_rows(up)
    if gated and not g.tensors.has(f"{blk}ffn_gate_shexp.weight"):
        gate, values = g.slices(h, up, n // 2, n // 2)
        f = g.gate(gate, values, activation)
    elif gated:
        gate, values = g.matmuls(h, (f"{blk}ffn_gate_shexp", n), (up, n))
        f = g.gate(gate, values, activation)
    else:
        f = g.gate(g.matmul(h, up, n), None, activation)
    y = g.matmul(f, f"{blk}ffn_down_shexp", g.embedding_length)
    if g.tensors.has(f"{router}.weight"):
        g.experts.sigmoid_gate(y, h, router)
    return y


def routed_experts(
    g: Builder[X], h: X, blk: Block, router: Router, activation: str, *, gated: bool = True
) -> X:
    """Return the output of the chosen experts. They may process latent vectors of lower dimension, which a matrix makes
    of h; another one maps the sum of their outputs back, possibly after a norm."""
    kind = "latent" if g.tensors.has(f"{blk}ffn_latent_down.weight") else "routed"
    down, norm, up = (f"{blk}ffn_{kind}_{name}" for name in ("down", "norm", "up"))
    if not g.tensors.has(f"{down}.weight"):
        return g.experts.apply(h, blk, router, activation, gated=gated)
    latent = g.matmul(h, down, g.tensors.n_rows(down))
    y = g.experts.apply(latent, blk, router, activation, gated=gated, router_input=h)
    return g.matmul(g.norm(y, norm) if g.tensors.has(f"{norm}.weight") else y, up, g.embedding_length)


def expert_feed_forward(
    g: Builder[X],
    h: X,
    blk: Block,
    router: Router,
    activation: str,
    *,
    shared_activation: str = "",
    average: bool = False,
) -> X:
    """Return the output of the chosen experts plus that of the shared expert, if there is one, or their `average`. The
    shared expert may have another activation."""
    y = routed_experts(g, h, blk, router, activation)
    if g.tensors.has(f"{blk}ffn_up_shexp.weight"):
        g.add(y, shared_expert(g, h, blk, shared_activation or activation))
        if average:
            g.scale(y, 0.5)
    return y


def active_parameters(f: GGUF) -> tuple[int, int]:
    """Return the number of weights that a token of a text is multiplied with, and their bytes. Expert tensors count
    in proportion to the experts that a token uses, and matrices for rows of images and the table of per-layer
    embeddings not at all. Without valid expert metadata, all other weights count."""
    tensors = f.tensors.values()
    return (
        sum(active_part(f, each, each.n_elements) for each in tensors),
        sum(active_part(f, each, each.nbytes) for each in tensors),
    )


def active_part(f: GGUF, tensor: Tensor, whole: int) -> int:
    """Return how many of a tensor's `whole` weights or bytes count in `active_parameters`."""
    if ".vis_" in tensor.name or tensor.name == "per_layer_token_embd.weight":  # rows of images; few rows of a table
        return 0
    name = f.get("general.architecture", str)
    count, used = (f.metadata.get(f"{name}.expert_{key}") for key in ("count", "used_count"))
    if not (isinstance(count, int) and isinstance(used, int) and 0 < used <= count):
        count = used = 1
    if "_chexps." in tensor.name:  # adjugate experts, which several of the chosen ones may share
        return whole * min(used, tensor.shape[0]) // tensor.shape[0]
    return whole * used // count if "_exps." in tensor.name and tensor.shape[:1] == (count,) else whole
