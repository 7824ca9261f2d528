"""Canonical config.json keys: architectures use different keys for the same hyperparameters."""

from collections.abc import Mapping, Sequence
from typing import Any

from localinfer.conversion.checkpoint_folder import JsonObject

KEY_ALIASES = {  # the first key that exists is used
    "hidden_size": ("hidden_size", "n_embd"),
    "intermediate_size": ("block_ff_dim", "intermediate_size", "ffn_hidden_size", "n_inner"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "head_dim": ("head_dim", "attention_head_dim"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "n_ctx"),
    "rms_norm_eps": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "layer_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_emb_fraction"),
    "rope_theta": ("rope_theta", "rotary_emb_base", "global_rope_theta"),
    "rope_local_base_freq": ("rope_local_base_freq", "local_rope_theta"),
    "sliding_window": ("sliding_window", "local_attention"),
    "sliding_window_pattern": ("sliding_window_pattern", "global_attn_every_n_layers"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "moe_k", "moe_topk"),
    "n_shared_experts": ("n_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "shared_expert_intermediate_size": (
        "shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size",
    ),
    "first_k_dense_replace": (
        "first_k_dense_replace", "first_last_k_dense_replace", "num_dense_layers", "moe_layer_start_index",
    ),
    "moe_intermediate_size": ("moe_intermediate_size",),
    "tie_word_embeddings": ("tie_word_embeddings",),
    "mamba_n_heads": ("mamba_n_heads", "mamba_num_heads", "num_heads"),
    "mamba_d_head": ("mamba_d_head", "mamba_head_dim", "head_dim"),
    "mamba_d_state": ("mamba_d_state", "ssm_state_size", "state_size"),
    "mamba_n_groups": ("mamba_n_groups", "n_groups"),
    "mamba_d_conv": ("mamba_d_conv", "conv_kernel"),
    "time_step_rank": ("time_step_rank", "mamba_dt_rank"),
    "layer_types": ("layer_types", "layers_block_type"),
    "hidden_act": ("hidden_activation", "hidden_act", "activation_function", "activation"),
}  # fmt: skip

TEXT_KEYS = ("text_config", "language_config", "llm_config", "lfm")  # of objects that describe a text model
PER_LAYER_KEYS = ("num_experts_per_tok", "n_shared_experts", "moe_intermediate_size")  # may be lists


def normalize_keys(
    config: JsonObject,
    architecture_aliases: Mapping[str, str],
    defaults: Mapping[str, Any],
    parts: Sequence[str] = (),
) -> JsonObject:
    """Return the object with canonical keys, including the values of a nested text model and of nested `parts`.

    `architecture_aliases` are keys of the architecture that take precedence. Messages name the keys that the file uses.
    """
    values = without_nulls(config.values)
    for parent in (config, config.child("thinker_config")):
        for key in (*TEXT_KEYS, *parts):
            values |= without_nulls(parent.child(key).values)
    used_keys: dict[str, str] = {}
    for key, names in KEY_ALIASES.items():
        architecture_names = [architecture_aliases[key]] if key in architecture_aliases else []
        used_keys[key] = next((name for name in (*architecture_names, *names) if name in values), key)
    values |= {key: values[name] for key, name in used_keys.items() if name in values}
    if "rotary_dim" in values and isinstance(head_dim := values.get("head_dim"), int) and head_dim > 0:
        values.setdefault("partial_rotary_factor", values["rotary_dim"] / head_dim)
    values |= {key: common_value(values[key]) for key in PER_LAYER_KEYS if key in values}
    return JsonObject(config.path, {**defaults, **values}, aliases=used_keys)


def common_value(value: Any) -> Any:
    """Return the common value of a per-layer list if all layers agree, else the value unchanged."""
    all_equal = isinstance(value, list) and value and all(each == value[0] for each in value)
    return value[0] if all_equal else value


def without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not null."""
    return {key: value for key, value in values.items() if value is not None}
