"""Step 3.5, whose checkpoints have lists with a rotary embedding for each layer, and layers with other heads."""

from dataclasses import replace
from typing import Any

import numpy as np

from localinfer.conversion.architectures.common import EXPERTS, SHARED_EXPERTS
from localinfer.conversion.architectures.experts import DOTS1
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.metadata import expert_metadata
from localinfer.conversion.metadata.layer_overrides import numbers
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import MAXIMA

FRACTIONS = {"full_attention": 0.5, "sliding_attention": 1.0}  # of a head that are rotated


def adapted_keys(config: JsonObject) -> dict[str, Any]:
    """Return the rotary embedding of each kind of layers, the kinds of MTP layers, which follow the others in the same
    list, and the number of dense first layers."""
    n_layer = config.positive_int("num_hidden_layers", MAXIMA["block_count"])
    every, theta = [str(kind) for kind in config.get("layer_types", list)], config.values.get("rope_theta")
    kinds = every[:n_layer]
    bases, usual = theta[:n_layer] if isinstance(theta, list) else [theta] * n_layer, [*map(FRACTIONS.get, kinds)]
    if config.get("partial_rotary_factors", list, usual)[:n_layer] != usual:
        what = "other than 0.5 with full attention and 1.0 with a window is not supported"
        raise config.error("partial_rotary_factors", what, UnsupportedError)
    if len(kinds) != n_layer or len(bases) != n_layer:
        raise config.error("layer_types", f"must be {n_layer} kinds, as many as numbers in rope_theta")
    ropes = {
        kind: {"rope_theta": base, "partial_rotary_factor": FRACTIONS.get(kind)}
        for kind, base in zip(kinds, bases, strict=True)
    }
    ropes.setdefault("full_attention", {}).update(config.child("rope_scaling").values)
    listed = [each.strip() for each in config.get("moe_layers_enum", str).split(",")]
    sparse = sorted(int(each) for each in listed if each.isdecimal() and len(each) < 10)
    if not sparse or sparse != list(range(sparse[0], n_layer)):
        raise config.error("moe_layers_enum", "must be the numbers of all layers from one on", UnsupportedError)
    return {
        "layer_types": kinds, "mtp_layer_types": every[n_layer:], "rope_parameters": ropes, "rope_theta": None,
        "first_k_dense_replace": sparse[0],
    }  # fmt: skip


def mtp_windows(config: JsonObject, count: int) -> list[bool]:
    """Return which MTP layers have a window. Layers that the list lacks have full attention."""
    kinds = [*config.get("mtp_layer_types", list), *["full_attention"] * count]
    return [kind == "sliding_attention" for kind in kinds[:count]]


def read_hparams(config: JsonObject, hp: HParams) -> HParams:  # noqa: ARG001
    """Set what GGUF states of whole heads: the number of rotated values, and the factors of pairs."""
    factors = {
        name: np.pad(each, (0, hp.head_dim // 2 - len(each)), constant_values=1)
        for name, each in hp.rope.factors.items()
    }
    return replace(hp, rope=replace(hp.rope, n_rot=hp.head_dim, factors=factors))


def layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return the layer overrides: layers with a window have other numbers of heads."""
    other = config.child("attention_other_setting")
    heads = other.positive_int("num_attention_heads", MAXIMA["attention.head_count"], hp.n_head)
    heads_kv = other.positive_int("num_attention_groups", heads, hp.n_head_kv)
    if heads % heads_kv:
        raise other.error("num_attention_groups", f"is {heads_kv}; it must divide {heads}")
    local = LayerOverrides({"n_head": heads, "n_head_kv": heads_kv})
    full = LayerOverrides({"n_head": hp.n_head, "n_head_kv": hp.n_head_kv})
    return tuple(local if sliding else full for sliding in hp.is_sliding)


def limits(config: JsonObject, key: str, n_layer: int, n_mtp: int) -> Field:
    """Return the limit of the gates of each layer; 0 if there is none, as in MTP layers."""
    values = [0.0 if each is None else each for each in config.get(key, list)[:n_layer]]
    if len(values) != n_layer or not all(type(each) in (int, float) and 0 <= each < 1e30 for each in values):
        raise config.error(key, f"must be {n_layer} numbers, none below 0")
    return Field.numbers(np.array([*values, *[0.0] * n_mtp], np.float32))


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of experts, the heads of each layer, and the limits of gates."""
    each = layers(config, hp)
    fields = expert_metadata.sigmoid_experts(config, hp) | {
        "attention.head_count": numbers([layer.values["n_head"] for layer in each]),
        "attention.head_count_kv": numbers([layer.values["n_head_kv"] for layer in each]),
        "expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared),
        "leading_dense_block_count": Field.uint32(hp.n_dense_layers),
        "moe_every_n_layers": Field.uint32(1),
    }
    keys = {"swiglu_limits": "swiglu_clamp_exp", "swiglu_limits_shared": "swiglu_clamp_shexp"}
    given = {key: name for key, name in keys.items() if key in config.values}
    return fields | {name: limits(config, key, hp.n_layer, hp.n_mtp_layers) for key, name in given.items()}


STEP35 = replace(
    DOTS1,
    name="step35",
    may_have_window=False,
    layer_tensors=(*DOTS1.layer_tensors, "attn_gate"),
    optional_layer_tensors=(),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS, "exp_probs_b.bias"),
    shapes={"attn_gate": ("n_head", "n_embd")},
    tensor_names={
        "moe.router_bias": "exp_probs_b.bias",
        "transformer.shared_head.norm": "nextn.shared_head_norm",
        "transformer.shared_head.output": "nextn.shared_head_head",
    },
    norm_offset=1.0,
    has_partial_rope=True,
    has_window_rope=True,
    window_period=0,
    writes_window_flags=True,
    has_mtp=True,
    mtp_windows=mtp_windows,
    key_aliases={
        "num_key_value_heads": "num_attention_groups", "num_experts_per_tok": "moe_top_k",
        "shared_expert_intermediate_size": "share_expert_dim",
    },
    adapted_keys=adapted_keys,
    float_keys={"moe_router_scaling_factor": "expert_weights_scale"},
    bool_keys={"norm_expert_weight": "expert_weights_norm"},
    int_keys={},
    read_hparams=read_hparams,
    metadata=metadata,
    layer_overrides=layers,
    required_values={
        "moe_router_activation": "sigmoid", "use_moe_router_bias": True, "use_head_wise_attn_gate": True,
        "use_qk_norm": True, "moe_every_n_layer": 1,
    },
    defaults={"norm_expert_weight": True, "rms_norm_eps": 1e-5},
)  # fmt: skip
BY_CLASS = {"Step3p5ForCausalLM": STEP35}
