"""PLaMo, whose heads of queries that share a key are not adjacent, PLaMo 2, which has Mamba layers, and PLaMo 3. The
norms of the last two lack an offset that differs between kinds."""

from dataclasses import replace
from typing import Any

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures import bamba
from localinfer.conversion.architectures.common import (
    FUSED_QKV,
    GATED_FFN,
    HEAD_NORMS,
    POST_NORMS,
    PRE_NORMS,
    SEPARATE_QKV,
    UNGATED_FFN,
)
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata import attention_metadata
from localinfer.conversion.tensor_formats import reorder
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM, MAXIMA

PLAMO = Architecture(
    name="plamo",
    layer_tensors=("attn_norm", *SEPARATE_QKV, *GATED_FFN),
    reorder={"attn_q": reorder.group_tiled_heads, "attn_output": reorder.group_tiled_columns},
    read_hparams=attention_metadata.plamo_hparams,
    defaults={"max_position_embeddings": 4096},
)
NORM_OFFSETS = {"post_attention_norm": 1 / 5, "post_ffw_norm": 1 / 5**1.5}
INPUT_NORMS = ("ssm_dt_norm", "ssm_b_norm", "ssm_c_norm")  # of recurrent heads


def plamo2_keys(config: JsonObject) -> dict[str, Any]:
    """Return the type of each layer: one in `mamba_step` has attention, or the last one of few. The sliding window is
    that of another key."""
    n_layer = config.positive_int("num_hidden_layers", MAXIMA["block_count"])
    step = config.positive_int("mamba_step", DEFAULT_MAXIMUM, 2)
    attention = range(n_layer - 1, n_layer) if n_layer <= step // 2 else range(step // 2, n_layer, step)
    kinds = ["full_attention" if layer in attention else "linear_attention" for layer in range(n_layer)]
    return {"layer_types": kinds, "sliding_window": None}


def plamo2_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of Mamba layers, and which layers have a sliding window. A token also attends to the one that is as
    far away as the window is long."""
    heads, key, width = (
        config.positive_int(f"mamba_{name}", DEFAULT_MAXIMUM, usual)
        for name, usual in (("num_heads", 64), ("d_state", 64), ("d_conv", 4))
    )
    n, rank = heads * hp.head_dim, max(64, hp.n_embd // 16)
    sizes = {
        "n_heads": heads, "n_groups": 0, "n_key": key, "n_values": n, "n_convolved": n, "n_in": 2 * n, "width": width,
        "rank": rank, "n_x": rank + 2 * key,
    }  # fmt: skip
    full = config.get("full_attention_idx", list, [])
    sliding = tuple(layer not in full for layer in range(hp.n_layer))
    window = 1 + config.positive_int("attention_window_size", DEFAULT_MAXIMUM, 2048) if any(sliding) else 0
    return replace(hp, sizes=sizes, is_sliding=sliding, sliding_window=window)


PLAMO2 = Architecture(
    name="plamo2",
    layer_tensors=(*PRE_NORMS, *POST_NORMS, *UNGATED_FFN),
    layer_type_tensors={
        "linear_attention": (
            "ssm_in", "ssm_conv1d", "ssm_x", "ssm_dt", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_out", *INPUT_NORMS,
        ),
        "full_attention": (*FUSED_QKV, *HEAD_NORMS),
    },
    no_weight_suffix=("ssm_a", "ssm_d", *POST_NORMS, *INPUT_NORMS),
    shapes={
        "ffn_up": ("n_gate_and_up", "n_embd"), "ssm_dt": ("n_heads", "rank"), "ssm_dt.bias": ("n_heads",),
        "ssm_dt_norm": ("rank",), "ssm_b_norm": ("n_key",), "ssm_c_norm": ("n_key",),
        "attn_q_norm": ("n_head", "head_dim"), "attn_k_norm": ("n_head_kv", "head_dim"),
    },
    tensor_names={
        "mixer.q_weight": "attn_q_norm", "mixer.k_weight": "attn_k_norm", "mixer.dt_norm_weight": "ssm_dt_norm",
        "mixer.B_norm_weight": "ssm_b_norm", "mixer.C_norm_weight": "ssm_c_norm",
    },
    norm_offset=1.0,
    norm_offsets=NORM_OFFSETS | dict.fromkeys((*HEAD_NORMS, *INPUT_NORMS), 0.0),
    key_aliases={"head_dim": "hidden_size_per_head"},
    adapted_keys=plamo2_keys,
    read_hparams=plamo2_hparams,
    metadata=bamba.metadata,  # llama.cpp also writes 0 heads of queries for Mamba layers, and then rotates nothing
    required_values={"mamba_enabled": True, "rms_norm_eps": 1e-6},
    defaults={
        "tie_word_embeddings": True, "hidden_size_per_head": 128, "num_attention_heads": 32, "num_key_value_heads": 4,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    },
)  # fmt: skip
PLAMO3 = Architecture(
    name="plamo3",
    layer_tensors=(*PRE_NORMS, *POST_NORMS, *FUSED_QKV, *HEAD_NORMS, *UNGATED_FFN),
    no_weight_suffix=POST_NORMS,
    shapes={"ffn_up": ("n_gate_and_up", "n_embd")},
    norm_offset=1.0,
    norm_offsets=NORM_OFFSETS,
    window_period=8,
    has_window_rope=True,
    truncates_yarn=False,
    key_aliases={"sliding_window": "window_size", "rope_local_base_freq": "rope_local_theta"},
    metadata=attention_metadata.window_period,
    required_values={"scale_embedding": False, "attention_bias": False},
    defaults={"tie_word_embeddings": True},
)


def plamo3(config: JsonObject) -> Architecture:
    """Return the architecture. Its context may be extended with YaRN, whose parameters are keys without a table."""
    factor = config.get("rope_scaling_factor", float, 1.0)
    if factor == 1.0:
        return PLAMO3
    scaling = {
        "rope_type": "yarn", "factor": factor, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": config.get("initial_context_length", int),
    }  # fmt: skip
    return replace(PLAMO3, defaults={**PLAMO3.defaults, "rope_scaling": scaling})


BY_CLASS = {
    "PlamoForCausalLM": PLAMO,
    "Plamo2ForCausalLM": PLAMO2,
    "PLaMo2ForCausalLM": PLAMO2,
    "Plamo3ForCausalLM": plamo3,
}
