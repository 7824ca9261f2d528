"""Layer overrides of architectures whose layers differ in more than their attention window, and their metadata."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.metadata import attention_metadata, expert_metadata, sliding_window
from localinfer.errors import UnsupportedError
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


def assistant_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of the hidden states that an assistant of Gemma 4 reads."""
    n = config.positive_int(attention_metadata.BACKBONE, MAXIMA["embedding_length"])
    return replace(hp, sizes={**hp.sizes, "n_target": n, "n_pair": 2 * n})


def assistant_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of an assistant of Gemma 4, all of whose layers are called MTP layers."""
    fields = {"embedding_length_out": hp.sizes["n_target"], "nextn_predict_layers": hp.n_layer}
    return gemma4_metadata(config, hp) | {key: Field.uint32(number) for key, number in fields.items()}


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


def counts(config: JsonObject, key: str, n_layer: int, maximum: int) -> list[int]:
    """Return the integers of a list with one for each layer, from 0 to `maximum`."""
    values = config.get(key, list)
    if len(values) != n_layer or not all(type(each) is int and 0 <= each <= maximum for each in values):
        raise config.error(key, f"must be {n_layer} numbers from 0 to {maximum}")
    return list(values)


def numbers(values: Sequence[int]) -> Field:
    """Return an array with a number for each layer."""
    return Field.numbers(np.array(values, np.int32))


def mimo_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set which of MiMo's layers have a sliding window, and the number of dense first layers."""
    for key in ("head_dim", "v_head_dim", "num_attention_heads"):
        windowed = config.get(f"swa_{key}", int, config.get(key, int))
        if windowed != config.get(key, int):
            raise config.error(f"swa_{key}", f"is {windowed}; other than {key} is not supported", UnsupportedError)
    sliding, sparse = (counts(config, key, hp.n_layer, 1) for key in ("hybrid_layer_pattern", "moe_layer_freq"))
    dense = sparse.index(1) if 1 in sparse else hp.n_layer
    if 0 in sparse[dense:] or dense == hp.n_layer:
        raise config.error("moe_layer_freq", "must be 0 and then 1", UnsupportedError)
    value_length = config.positive_int("v_head_dim", MAXIMA["attention.value_length"])
    return replace(
        hp, is_sliding=tuple(each == 1 for each in sliding), n_dense_layers=dense, head_dim_value=value_length
    )


def mimo_layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return MiMo's layer overrides: layers with a sliding window have more heads of keys, and sinks."""
    more = config.positive_int("swa_num_key_value_heads", MAXIMA["attention.head_count_kv"], hp.n_head_kv)
    if hp.n_head % more:
        raise config.error("swa_num_key_value_heads", f"is {more}; it must divide {hp.n_head}")
    local = LayerOverrides({"n_head_kv": more})
    return tuple(local if each else LayerOverrides({}, frozenset({"attn_sinks"})) for each in hp.is_sliding)


def mimo_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return MiMo's metadata: experts, and the number of heads of keys in each layer."""
    layers = [layer.values.get("n_head_kv", hp.n_head_kv) for layer in mimo_layers(config, hp)]
    return expert_metadata.sigmoid_experts(config, hp) | {"attention.head_count_kv": numbers(layers)}


def laguna_layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return Laguna's layer overrides: all layers have their own number of heads."""
    key, maximum = "num_attention_heads_per_layer", MAXIMA["attention.head_count"]
    heads = counts(config, key, hp.n_layer, maximum) if key in config.values else [hp.n_head] * hp.n_layer
    if any(count % hp.n_head_kv or not count for count in heads):
        raise config.error(key, f"must be multiples of {hp.n_head_kv}")
    return tuple(LayerOverrides({"n_head": count}) for count in heads)


def laguna_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return Laguna's metadata: experts, the heads of each layer, and the rotated values of heads with a window."""
    fields = {
        "attention.head_count": numbers([layer.values["n_head"] for layer in laguna_layers(config, hp)]),
        "leading_dense_block_count": Field.uint32(hp.n_dense_layers),
        "expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared),
        "expert_weights_norm": Field.flag(True),
    }
    if hp.sliding_window:
        fields["rope.dimension_count_swa"] = Field.uint32(hp.rope_swa.n_rot)
    return expert_metadata.sigmoid_experts(config, hp) | fields


def openelm_lengths(config: JsonObject) -> list[int]:
    """Return OpenELM's feed-forward length of each layer: a multiple of the embedding length, rounded to a multiple of
    the divisor, but down by at most a tenth."""
    n_embd, divisor = (
        config.positive_int(key, MAXIMA["embedding_length"]) for key in ("model_dim", "ffn_dim_divisor")
    )
    lengths = []
    for factor in config.get("ffn_multipliers", list):
        if type(factor) not in (int, float) or not 0 < factor * n_embd < MAXIMA["feed_forward_length"]:
            raise config.error("ffn_multipliers", "must be positive numbers that make no more than the largest length")
        wanted = factor * n_embd
        rounded = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
        lengths.append(rounded + divisor if rounded < 0.9 * wanted else rounded)
    return lengths


def openelm_layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return OpenELM's layer overrides: all layers have their own numbers of heads and feed-forward length."""
    heads, heads_kv = (
        counts(config, key, hp.n_layer, MAXIMA["attention.head_count"]) for key in ("num_query_heads", "num_kv_heads")
    )
    lengths = openelm_lengths(config)
    if len(lengths) != hp.n_layer:
        raise config.error("ffn_multipliers", f"must be {hp.n_layer} numbers")
    each = zip(heads, heads_kv, lengths, strict=True)
    return tuple(LayerOverrides({"n_head": q, "n_head_kv": kv, "n_ff": n_ff}) for q, kv, n_ff in each)


def size_metadata(layers: Sequence[LayerOverrides]) -> dict[str, Field]:
    """Return the numbers of heads and the feed-forward length of each layer."""
    names = {
        "attention.head_count": "n_head", "attention.head_count_kv": "n_head_kv", "feed_forward_length": "n_ff",
    }  # fmt: skip
    return {key: numbers([layer.values[name] for layer in layers]) for key, name in names.items()}


def openelm_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the sizes of OpenELM's layers."""
    return size_metadata(openelm_layers(config, hp))


def deci_layer(hp: HParams, blk: JsonObject) -> LayerOverrides:
    """Return the overrides of a layer of Llama Nemotron: its feed-forward length, and its attention, in whose place it
    may have a matrix or nothing."""
    attention, network = blk.child("attention"), blk.child("ffn")
    group, factor = attention.values.get("n_heads_in_group"), network.values.get("ffn_mult")
    missing: set[str] = set()
    heads, heads_kv, n_ff = hp.n_head, 0, 0
    if group is not None:
        heads_kv = hp.n_head // attention.positive_int("n_heads_in_group", hp.n_head)
    elif attention.get("replace_with_linear", bool, False):
        missing |= {"attn_q", "attn_k", "attn_v"}
    else:
        heads, missing = 0, {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"}
    if factor is not None:
        largest = MAXIMA["feed_forward_length"] / hp.n_embd
        n_ff = -(-int(2 * network.positive_float("ffn_mult", maximum=largest) * hp.n_embd / 3) // 256) * 256
    else:
        missing |= {"ffn_norm", "ffn_gate", "ffn_up", "ffn_down"}
    return LayerOverrides({"n_head": heads, "n_head_kv": heads_kv, "n_ff": n_ff}, frozenset(missing))


def deci_layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return the layer overrides of Llama Nemotron, or those of DeciLM, whose numbers of heads of keys differ."""
    if "block_configs" not in config.values:
        maximum = MAXIMA["attention.head_count_kv"]
        return tuple(
            LayerOverrides({"n_head": hp.n_head, "n_head_kv": count, "n_ff": hp.n_ff})
            for count in counts(config, "num_key_value_heads_per_layer", hp.n_layer, maximum)
        )
    blocks = config.get("block_configs", list)
    if len(blocks) != hp.n_layer or not all(isinstance(each, dict) for each in blocks):
        raise config.error("block_configs", f"must be {hp.n_layer} objects")
    named = (JsonObject(config.path, each, f"block_configs[{number}].") for number, each in enumerate(blocks))
    return tuple(deci_layer(hp, each) for each in named)


def deci_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the sizes of the layers."""
    sizes = size_metadata(deci_layers(config, hp))
    return sizes if "block_configs" in config.values else {"attention.head_count_kv": sizes["attention.head_count_kv"]}
