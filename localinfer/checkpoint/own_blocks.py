"""Architectures whose blocks differ in more than what they see: how, by config.json, and GGUF's keys for that."""

import numpy as np

from localinfer.checkpoint import own_keys, windows
from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.numbers import Numbers, Own
from localinfer.files.source import Field
from localinfer.plan.keys import LARGEST


def gemma4(config: Table, n: Numbers) -> dict[str, Field]:
    """Layers with a window have shorter heads; the last ones use the keys and values of earlier ones."""
    found = {
        "attention.key_length": Field.uint32(n.head_dim_everything),
        "attention.value_length": Field.uint32(n.head_dim_everything),
        "attention.key_length_swa": Field.uint32(n.head_dim),
        "attention.value_length_swa": Field.uint32(n.head_dim),
        "rope.dimension_count_swa": Field.uint32(n.rope_swa.n_rot),
        "attention.shared_kv_layers": Field.uint32(own_keys.shared_layers(config, n)),
        "embedding_length_per_layer_input": Field.uint32(n.n_input),
    }
    if n.n_expert:
        found |= own_keys.experts(config, n)
    blocks = [n.of_block(block) for block in range(n.n_layer)]
    arrays = {
        "feed_forward_length": [each.n_ff for each in blocks],
        "attention.head_count_kv": [each.n_head_kv for each in blocks],
    }
    return found | {
        key: Field.numbers(np.array(each, np.int32)) for key, each in arrays.items() if len(set(each)) > 1
    }


def blocks_of_gemma4(config: Table, n: Numbers) -> tuple[Own, ...]:
    """Layers that see everything have longer heads, fewer of keys, and these are values too, where config.json says
    so; layers without keys of their own may have a feed-forward network of twice the width."""
    n_head_kv = n.n_head_kv
    values_are_keys = config.get("attention_k_eq_v", bool, False)
    if values_are_keys:
        most = LARGEST["attention.head_count_kv"]
        n_head_kv = windows.of_full_layers(config, "num_global_key_value_heads", "num_key_value_heads", most, n_head_kv)
    wide = 2 if config.get("use_double_wide_mlp", bool, False) else 1
    found = []
    for block, slides in enumerate(n.sliding):
        shares = block >= n.n_layer - own_keys.shared_layers(config, n)
        numbers = {} if slides else {"head_dim": n.head_dim_everything, "n_head_kv": n_head_kv}
        lacks = {"attn_v"} if values_are_keys and not slides else set()
        if shares:
            numbers["n_ff"] = wide * n.n_ff
            lacks = {"attn_k", "attn_v", "attn_k_norm"}
        found.append(Own(numbers, frozenset(lacks)))
    return tuple(found)


def blocks_of_gemma3n(config: Table, n: Numbers) -> tuple[Own, ...]:
    """The last layers use the keys and values of earlier ones."""
    first = n.n_layer - own_keys.shared_layers(config, n)
    without = Own({}, frozenset({"attn_k", "attn_v", "attn_k_norm"}))
    return tuple(without if block >= first else Own({}) for block in range(n.n_layer))
