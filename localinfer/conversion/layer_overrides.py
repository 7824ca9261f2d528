"""Layer overrides of architectures whose layers differ in more than their attention window, and their metadata."""

import numpy as np

from localinfer.conversion import attention_metadata, expert_metadata, sliding_window
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import MAXIMA


def gemma4_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return Gemma 4's metadata. Sliding-window layers have shorter heads; the last layers share the KV cache of
    earlier ones.
    """
    fields = {
        "attention.key_length": Field.uint32(hp.head_dim_full),
        "attention.value_length": Field.uint32(hp.head_dim_full),
        "attention.key_length_swa": Field.uint32(hp.head_dim),
        "attention.value_length_swa": Field.uint32(hp.head_dim),
        "rope.dimension_count_swa": Field.uint32(hp.rope_swa.n_rot),
        "attention.shared_kv_layers": Field.uint32(attention_metadata.shared_kv_layers(config, hp)),
        "embedding_length_per_layer_input": Field.uint32(hp.n_embd_per_layer),
    }
    if hp.n_expert:
        fields |= expert_metadata.experts(config, hp)
    blocks = [hp.for_layer(block) for block in range(hp.n_layer)]
    arrays = {
        "feed_forward_length": [each.n_ff for each in blocks],
        "attention.head_count_kv": [each.n_head_kv for each in blocks],
    }
    return fields | {key: Field.numbers(np.array(each, np.int32)) for key, each in arrays.items() if len(set(each)) > 1}


def gemma4_layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return Gemma 4's layer overrides. Full-attention layers have longer heads and fewer KV heads, and may use keys as
    values.

    Layers that use the keys of another layer may have a feed-forward network of twice the width.
    """
    n_head_kv = hp.n_head_kv
    values_are_keys = config.get("attention_k_eq_v", bool, False)
    if values_are_keys:
        maximum = MAXIMA["attention.head_count_kv"]
        n_head_kv = sliding_window.full_attention_value(
            config, "num_global_key_value_heads", "num_key_value_heads", maximum, n_head_kv
        )
    n_ff_factor = 2 if config.get("use_double_wide_mlp", bool, False) else 1
    overrides = []
    for block, is_sliding in enumerate(hp.is_sliding):
        shares_kv = block >= hp.n_layer - attention_metadata.shared_kv_layers(config, hp)
        numbers = {} if is_sliding else {"head_dim": hp.head_dim_full, "n_head_kv": n_head_kv}
        missing = {"attn_v"} if values_are_keys and not is_sliding else set()
        if shares_kv:
            numbers["n_ff"] = n_ff_factor * hp.n_ff
            missing = {"attn_k", "attn_v", "attn_k_norm"}
        overrides.append(LayerOverrides(numbers, frozenset(missing)))
    return tuple(overrides)


def gemma3n_layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return Gemma 3n's layer overrides: the last layers share the KV cache of earlier ones."""
    first = hp.n_layer - attention_metadata.shared_kv_layers(config, hp)
    without = LayerOverrides({}, frozenset({"attn_k", "attn_v", "attn_k_norm"}))
    return tuple(without if block >= first else LayerOverrides({}) for block in range(hp.n_layer))
