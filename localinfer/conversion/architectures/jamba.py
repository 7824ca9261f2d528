"""Jamba, whose config.json has the periods of the layers with attention and of those with experts."""

from dataclasses import replace

import numpy as np

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import EXPERTS, GATED_FFN, PRE_NORMS, SEPARATE_QKV
from localinfer.conversion.architectures.mamba import MAMBA
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata import expert_metadata, recurrent_metadata
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM, MAXIMA


def layers_of_period(config: JsonObject, kind: str, n_layer: int) -> list[int]:
    """Return the layers of a kind, "attn" or "expert": one in each period. Raises LocalInferError for none."""
    period = config.positive_int(f"{kind}_layer_period", DEFAULT_MAXIMUM)
    layers = range(config.get(f"{kind}_layer_offset", int), n_layer, period)
    if not layers or not 0 <= layers.start < period:
        raise config.error(f"{kind}_layer_offset", f"is {layers.start}; it must be 0 to {min(period, n_layer) - 1}")
    return [*layers]


def hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of Mamba layers, and which layers have no experts."""
    hp = recurrent_metadata.selective_scan_hparams(config, hp, config.positive_int("mamba_expand", 64) * hp.n_embd)
    return replace(hp, mlp_only_layers=frozenset(range(hp.n_layer)) - {*layers_of_period(config, "expert", hp.n_layer)})


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the shape of the recurrent states, the number of key heads of each layer, and that of experts, which is 1
    without a router.
    """
    heads = [hp.n_head_kv if kind == "full_attention" else 0 for kind in hp.layer_types]
    counts = {"attention.head_count_kv": Field.numbers(np.array(heads, np.int32))}
    shape = recurrent_metadata.selective_scan_shape(hp)
    return shape | counts | expert_metadata.experts(config, replace(hp, n_expert=hp.n_expert or 1))


JAMBA = Architecture(
    name="jamba",
    layer_tensors=PRE_NORMS,
    layer_type_tensors={
        "linear_attention": (*MAMBA.layer_tensors[1:], "ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"),
        "full_attention": SEPARATE_QKV,
    },
    moe_tensors=EXPERTS,
    dense_tensors=GATED_FFN,
    shapes={**MAMBA.shapes, "ssm_dt_norm": ("rank",), "ssm_b_norm": ("n_key",), "ssm_c_norm": ("n_key",)},
    has_rope=False,
    read_hparams=hparams,
    metadata=metadata,
    required_values={"mamba_conv_bias": True, "mamba_proj_bias": False},
    defaults={"first_k_dense_replace": 0, "mamba_expand": 2, "num_experts": 16, "num_experts_per_tok": 2},
)
WITHOUT_ROUTER = replace(JAMBA, layer_tensors=(*PRE_NORMS, *GATED_FFN), moe_tensors=(), dense_tensors=())


def jamba(config: JsonObject) -> Architecture:
    """Return the architecture with the type of each layer; small models have one expert, which has no router."""
    n_layer = config.positive_int("num_hidden_layers", MAXIMA["block_count"])
    kinds = np.full(n_layer, "linear_attention", object)
    kinds[layers_of_period(config, "attn", n_layer)] = "full_attention"
    architecture = JAMBA if config.get("num_experts", int, 16) > 1 else WITHOUT_ROUTER
    return replace(architecture, defaults={**JAMBA.defaults, "layer_types": kinds.tolist()})


BY_CLASS = {"JambaForCausalLM": jamba}
