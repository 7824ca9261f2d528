"""config.json's keys in one spelling: architectures have different words for the same numbers."""

from collections.abc import Mapping
from typing import Any

from localinfer.checkpoint.folder import Table

SPELLINGS = {  # the first that is there counts
    "hidden_size": ("hidden_size", "n_embd"),
    "intermediate_size": ("block_ff_dim", "intermediate_size", "ffn_hidden_size", "n_inner"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "head_dim": ("head_dim",),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "n_ctx"),
    "rms_norm_eps": ("rms_norm_eps", "norm_eps"),
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
    "first_k_dense_replace": ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
    "moe_intermediate_size": ("moe_intermediate_size",),
    "mamba_n_heads": ("mamba_n_heads", "mamba_num_heads", "num_heads"),
    "mamba_d_head": ("mamba_d_head", "mamba_head_dim", "head_dim"),
    "mamba_d_state": ("mamba_d_state", "ssm_state_size", "state_size"),
    "mamba_n_groups": ("mamba_n_groups", "n_groups"),
    "mamba_d_conv": ("mamba_d_conv", "conv_kernel"),
    "layer_types": ("layer_types", "layers_block_type"),
    "hidden_act": ("hidden_activation", "hidden_act", "activation_function", "activation"),
}  # fmt: skip

OF_EACH_BLOCK = ("num_experts_per_tok", "n_shared_experts", "moe_intermediate_size")  # in some configurations a list


def spelled(config: Table, own: Mapping[str, str], defaults: Mapping[str, Any]) -> Table:
    """The same table with the usual keys, and the values of a text model within a larger one; messages name the keys
    that the file has. `own` are the architecture's keys that go before the usual ones."""
    values = without_nulls(config.values) | without_nulls(config.table("text_config").values)
    usual: dict[str, str] = {}
    for key, words in SPELLINGS.items():
        own_words = [own[key]] if key in own else []
        usual[key] = next((word for word in (*own_words, *words) if word in values), key)
    values |= {key: values[word] for key, word in usual.items() if word in values}
    values |= {key: of_all(values[key]) for key in OF_EACH_BLOCK if key in values}
    return Table(config.path, {**defaults, **values}, spellings=usual)


def of_all(value: Any) -> Any:
    """What a list says of each block, where it says the same of all."""
    alike = isinstance(value, list) and value and all(each == value[0] for each in value)
    return value[0] if alike else value


def without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
