"""PLaMo, whose heads of queries that share a key are not adjacent, and PLaMo 3, whose norms lack an offset that differs
between kinds."""

from dataclasses import replace

from localinfer.conversion import attention_metadata
from localinfer.conversion.architecture import Architecture
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
from localinfer.conversion.tensor_formats import reorder

PLAMO = Architecture(
    name="plamo",
    layer_tensors=("attn_norm", *SEPARATE_QKV, *GATED_FFN),
    reorder={"attn_q": reorder.group_tiled_heads, "attn_output": reorder.group_tiled_columns},
    read_hparams=attention_metadata.plamo_hparams,
    defaults={"max_position_embeddings": 4096},
)
PLAMO3 = Architecture(
    name="plamo3",
    layer_tensors=(*PRE_NORMS, *POST_NORMS, *FUSED_QKV, *HEAD_NORMS, *UNGATED_FFN),
    no_weight_suffix=POST_NORMS,
    shapes={"ffn_up": ("n_gate_and_up", "n_embd")},
    norm_offset=1.0,
    norm_offsets={"post_attention_norm": 1 / 5, "post_ffw_norm": 1 / 5**1.5},
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


BY_CLASS = {"PlamoForCausalLM": PLAMO, "Plamo3ForCausalLM": plamo3}
