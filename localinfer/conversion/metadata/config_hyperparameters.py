"""Read and validate the hyperparameters of config.json, and write them as GGUF keys."""

from collections.abc import Sequence
from dataclasses import replace
from math import isclose

from localinfer.conversion import quantization_config
from localinfer.conversion.architecture import Architecture, no_overrides
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata import sliding_window
from localinfer.conversion.rope import RopeMetadata, read_ropes
from localinfer.conversion.tensor_formats import reorder
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM, MAXIMA

MAX_VOCABULARY = 1 << 20
MAX_TOKEN_TYPES = 1024
MAX_HEAD_DIM = 1 << 16
BLOCK = 32  # values of an activation that share a scale

# Keys that change the computation, with the value that has no effect. Architectures list the keys they support.
UNSUPPORTED_KEYS = {
    "attention_multiplier": None,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "use_bidirectional_attention": False,
    "clip_qkv": None,
}
EPS = {"rms": "rms_norm_eps", "layer": "layer_norm_eps"}
EPS_KEYS = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}

LAYER_TYPE_ALIASES = {"mamba": "linear_attention", "attention": "full_attention", "indexed_attention": "full_attention"}
LAYER_TYPE_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}

# The largest models of two families divide scores by sqrt(n_embd / n_head), without a key that states it.
LARGEST_MODEL_LAYERS = {"gemma2": 46, "gemma3": 62}


def read_hparams(architecture: Architecture, config: JsonObject) -> HParams:
    """Return the model's hyperparameters.

    Raises LocalInferError naming a missing or invalid key, UnsupportedError for a value that GGUF cannot express.
    """
    reject_unsupported(architecture, config)
    ternary_scale_power = quantization_config.read_ternary_packing(architecture, config)
    n_embd = config.positive_int("hidden_size", MAXIMA["embedding_length"])
    n_head = config.positive_int("num_attention_heads", MAXIMA["attention.head_count"])
    n_head_kv = read_kv_heads(architecture, config, n_head)
    head_dim = read_head_dim(config, n_embd, n_head)
    n_layer = config.positive_int(
        "num_hidden_layers", MAXIMA["block_count"], len(normalized_layer_types(config)) or None
    )
    position_offset = read_position_offset(architecture, config)
    n_ctx = read_context_length(config, position_offset)
    is_sliding = sliding_window.read_sliding_layers(architecture, config, n_layer)
    head_dim_full = sliding_window.full_attention_value(config, "global_head_dim", "head_dim", MAX_HEAD_DIM, head_dim)
    rope, rope_swa = read_rope_metadata(architecture, config, (head_dim_full, head_dim), n_ctx, is_sliding)
    n_ff = read_feed_forward_length(architecture, require_equal_layers(config, "intermediate_size", n_layer), n_embd)
    n_expert, n_ff_expert, n_ff_shared = read_experts(architecture, config, n_ff)
    hparams = HParams(
        n_layer=n_layer,
        n_ctx=n_ctx,
        n_embd=n_embd,
        n_ff=n_ff,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_vocab=config.positive_int("vocab_size", MAX_VOCABULARY),
        eps=config.positive_float(EPS[architecture.norm], maximum=1.0),
        tied_embeddings=config.get("tie_word_embeddings", bool, False),
        rope=rope,
        rope_swa=rope_swa,
        sliding_window=config.positive_int("sliding_window", DEFAULT_MAXIMUM) if any(is_sliding) else 0,
        is_sliding=is_sliding,
        n_expert=n_expert,
        n_ff_expert=n_ff_expert,
        n_ff_shared=n_ff_shared,
        n_dense_layers=read_dense_layers(config, n_layer) if architecture.dense_tensors else 0,
        layer_types=read_layer_types(config, n_layer, set(architecture.layer_type_tensors))
        if architecture.layer_type_tensors
        else (),
        ternary_scale_power=ternary_scale_power,
        n_token_types=optional_count(config, "type_vocab_size", MAX_TOKEN_TYPES),
        n_labels=len(read_labels(config)),
        position_offset=position_offset,
        head_dim_full=head_dim_full,
        n_embd_per_layer=optional_count(config, "hidden_size_per_layer_input", MAXIMA["embedding_length"]),
    )
    if not architecture.has_attention_scale and attention_scale(architecture, config, hparams):
        scaled_by = config.get("query_pre_attn_scalar", float)
        raise config.error("query_pre_attn_scalar", f"{scaled_by:g} is not supported", UnsupportedError)
    hparams = architecture.read_hparams(config, hparams)
    require_whole_blocks(architecture, config, hparams)
    return replace(hparams, layer_overrides=architecture.layer_overrides(config, hparams))


def require_whole_blocks(architecture: Architecture, config: JsonObject, hparams: HParams) -> None:
    """Raise UnsupportedError for a length that no reader can run: activations are quantized in blocks of 32 values."""
    kinds = {*architecture.layer_tensors, *architecture.moe_tensors, *architecture.dense_tensors}
    kinds |= {kind for names in architecture.layer_type_tensors.values() for kind in names}
    lengths = {"hidden_size": hparams.n_embd}
    if {"ffn_down", "channel_mix_value"} & kinds:
        lengths["intermediate_size"] = hparams.n_ff
    if "ffn_down_exps" in kinds:
        key = "moe_intermediate_size" if "moe_intermediate_size" in config.values else "intermediate_size"
        lengths[key] = hparams.n_ff_expert
    for key, length in lengths.items():
        if length % BLOCK:
            raise config.error(key, f"makes {length} columns; they must be a multiple of {BLOCK}", UnsupportedError)


def read_head_dim(config: JsonObject, n_embd: int, n_head: int) -> int:
    """Return the number of values of an attention head."""
    head_dim = config.positive_int("head_dim", MAX_HEAD_DIM, max(n_embd // n_head, 1))
    if head_dim % 2:
        raise config.error("head_dim", f"is {head_dim}; it must be even")
    return head_dim


def read_context_length(config: JsonObject, position_offset: int) -> int:
    """Return the number of positions, without those before the first token of a text."""
    n_ctx = config.positive_int("max_position_embeddings", DEFAULT_MAXIMUM) - position_offset
    if n_ctx < 1:
        raise config.error("max_position_embeddings", f"leaves no position after the first {position_offset}")
    return n_ctx


def read_rope_metadata(
    architecture: Architecture, config: JsonObject, head_dims: tuple[int, int], n_ctx: int, is_sliding: Sequence[bool]
) -> tuple[RopeMetadata, RopeMetadata]:
    """Return the rotary embeddings of layers without and with a sliding window, whose head sizes are `head_dims`."""
    rope, rope_swa = read_ropes(
        config, head_dims, n_ctx, window_rope=architecture.has_window_rope, truncates=architecture.truncates_yarn
    )
    if rope.n_rot != head_dims[0] and not architecture.has_partial_rope:
        raise config.error("partial_rotary_factor", "is not supported", UnsupportedError)
    if architecture.has_window_rope and any(is_sliding) and rope_swa.fields:
        raise config.error("rope_parameters", "scaling in layers with a window is not supported", UnsupportedError)
    return rope, rope_swa


def read_feed_forward_length(architecture: Architecture, config: JsonObject, n_embd: int) -> int:
    """Return the feed-forward length; 0 if all layers have experts, which have a length of their own."""
    without = (
        "ffn_up" not in (*architecture.layer_tensors, *architecture.dense_tensors)
        and "moe_intermediate_size" in config.values
    )
    if without and "intermediate_size" not in config.values:
        return 0
    times = architecture.ffn_multiplier
    return config.positive_int("intermediate_size", MAXIMA["feed_forward_length"], times and times * n_embd)


def require_equal_layers(config: JsonObject, key: str, n_layer: int) -> JsonObject:
    """Return the config with a single value at `key` if it is a list with one value per layer, all equal."""
    given = config.values.get(key)
    if not isinstance(given, list) or len(given) != n_layer:
        return config
    if any(each != given[0] for each in given):
        raise config.error(key, "values that differ between layers are not supported", UnsupportedError)
    return replace(config, values={**config.values, key: given[0]})


def read_layer_types(config: JsonObject, n_layer: int, known: set[str]) -> tuple[str, ...]:
    """Return the type of each layer; each must be one of `known`."""
    kinds = normalized_layer_types(config)
    if len(kinds) != n_layer or not known.issuperset(map(str, kinds)):
        raise config.error("layer_types", f"must be {' or '.join(sorted(known))} {n_layer} times")
    return tuple(kinds)


def normalized_layer_types(config: JsonObject) -> list[str]:
    """Return the layer types with current names, from a list or a string with one letter per layer; [] if missing."""
    letters = config.get("hybrid_override_pattern", str, "")
    kinds = config.get("layer_types", list, [LAYER_TYPE_LETTERS.get(letter, letter) for letter in letters])
    return [LAYER_TYPE_ALIASES.get(str(kind), str(kind)) for kind in kinds]


def optional_count(config: JsonObject, key: str, most: int) -> int:
    """Return an integer that is 0 if missing."""
    return config.positive_int(key, most) if config.values.get(key) else 0


def read_position_offset(architecture: Architecture, config: JsonObject) -> int:
    """Return the first position: RoBERTa counts positions from the padding token's id + 1."""
    if reorder.drop_position_offset not in architecture.reorder.values():
        return 0
    return config.get("pad_token_id", int, 1) + 1


def read_labels(config: JsonObject) -> list[str]:
    """Return the class labels of a classifier, in order; two default labels if missing."""
    labels = config.child("id2label")
    if not labels.values:
        return ["LABEL_0", "LABEL_1"]
    numbers = sorted((int(key), key) for key in labels.values if key.isdecimal())
    return [labels.get(key, str) for _, key in numbers]


def read_kv_heads(architecture: Architecture, config: JsonObject, n_head: int) -> int:
    """Return the number of KV heads; 1 for multi-query attention. A list in config.json is read by layer overrides."""
    if architecture.layer_overrides is not no_overrides and isinstance(config.values.get("num_key_value_heads"), list):
        return n_head
    if config.get("multi_query", bool, False) and not config.get("new_decoder_architecture", bool, False):
        return 1
    n_head_kv = config.positive_int("num_key_value_heads", MAXIMA["attention.head_count"], n_head)
    if n_head % n_head_kv:
        raise config.error("num_key_value_heads", f"is {n_head_kv}; it must divide {n_head}")
    return n_head_kv


def read_experts(architecture: Architecture, config: JsonObject, n_ff: int) -> tuple[int, int, int]:
    """Return the number of experts, the feed-forward length of each, and that of all shared experts together, which
    is 0 if config.json says that there are none.
    """
    may_have = "ffn_gate_inp" in architecture.optional_layer_tensors and config.values.get("num_experts")
    of_kinds = (name for names in architecture.layer_type_tensors.values() for name in names)
    if "ffn_gate_inp" not in (*architecture.layer_tensors, *architecture.moe_tensors, *of_kinds) and not may_have:
        return 0, 0, 0
    widest = MAXIMA["feed_forward_length"]
    width = config.positive_int("moe_intermediate_size", widest, n_ff)
    shared = config.get("n_shared_experts", int, 1) * width
    if not 0 <= shared <= widest:
        raise config.error("n_shared_experts", f"makes {shared} columns; there may be 0 to {widest}")
    if "shared_expert_intermediate_size" in config.values:
        shared = optional_count(config, "shared_expert_intermediate_size", widest)
    return config.positive_int("num_experts", MAXIMA["expert_count"]), width, shared


def read_dense_layers(config: JsonObject, n_layer: int) -> int:
    """Return the number of leading layers without experts."""
    n_dense = config.get("first_k_dense_replace", int)
    if not 0 <= n_dense <= n_layer:
        raise config.error("first_k_dense_replace", f"is {n_dense}; it must be 0 to {n_layer}")
    if n_dense == n_layer:
        raise config.error("first_k_dense_replace", f"{n_dense} leaves no layer with experts", UnsupportedError)
    return n_dense


# --- unsupported values ---


def reject_unsupported(architecture: Architecture, config: JsonObject) -> None:
    """Raise UnsupportedError for a key that has no counterpart in GGUF, unless its value has no effect."""
    known = (*architecture.float_keys, *architecture.folded_multipliers, *architecture.written_keys)
    harmless = {key: value for key, value in UNSUPPORTED_KEYS.items() if key not in known}
    for key, value in (harmless | dict(architecture.required_values)).items():
        given = config.values.get(key, value)
        if given != value:
            raise config.error(key, f"{printable(repr(given), 40)} is not supported", UnsupportedError)
    activation = config.get("hidden_act", str, architecture.activations[0])
    if activation not in architecture.activations:
        raise config.error("hidden_act", f"{printable(repr(activation), 40)} is not supported", UnsupportedError)


def attention_scale(architecture: Architecture, config: JsonObject, hparams: HParams) -> float | None:
    """Return the factor of scores, or None if it is the one that readers assume."""
    largest = LARGEST_MODEL_LAYERS.get(architecture.name) == hparams.n_layer
    default = hparams.n_embd / hparams.n_head if largest else hparams.head_dim
    scaled_by = config.positive_float("query_pre_attn_scalar", float(hparams.head_dim))
    return None if isclose(scaled_by, default) else float(scaled_by**-0.5)


# --- GGUF's keys ---


def fields(architecture: Architecture, config: JsonObject, hparams: HParams) -> dict[str, Field]:
    """Return the keys `<architecture>.*`."""
    values = {
        "block_count": Field.uint32(hparams.n_layer + hparams.n_mtp_layers),
        "context_length": Field.uint32(hparams.rope.n_ctx or hparams.n_ctx),
        "embedding_length": Field.uint32(hparams.n_embd),
        "attention.head_count": Field.uint32(hparams.n_head if architecture.has_attention else 0),
        EPS_KEYS[architecture.norm]: Field.float32(hparams.eps),
        "vocab_size": Field.uint32(hparams.n_vocab),
    }
    if hparams.n_ff or not architecture.has_attention:
        values["feed_forward_length"] = Field.uint32(hparams.n_ff if architecture.has_attention else 0)
    if architecture.has_attention:
        values |= {
            "attention.head_count_kv": Field.uint32(hparams.n_head_kv),
            "attention.key_length": Field.uint32(hparams.head_dim),
            "attention.value_length": Field.uint32(hparams.value_length),
        }
    if hparams.n_mtp_layers:
        values["nextn_predict_layers"] = Field.uint32(hparams.n_mtp_layers)
    if architecture.has_rope:
        values |= rope_fields(hparams)
    values |= sliding_window.fields(architecture, hparams)
    if scale := attention_scale(architecture, config, hparams):
        values["attention.scale"] = Field.float32(scale)
    scales = {key: name for key, name in architecture.float_keys.items() if key in config.values}
    values |= {name: Field.float32(config.positive_float(key)) for key, name in scales.items()}
    values |= {name: Field.flag(config.get(key, bool)) for key, name in architecture.bool_keys.items()}
    values |= {name: Field.uint32(config.get(key, int)) for key, name in architecture.int_keys.items()}
    if "cls.output" in architecture.model_tensors:
        values["classifier.output_labels"] = Field.texts(read_labels(config))
    values |= architecture.metadata(config, hparams)
    return {f"{architecture.name}.{key}": field for key, field in values.items()}


def rope_fields(hparams: HParams) -> dict[str, Field]:
    parameters = {
        "rope.dimension_count": Field.uint32(hparams.rope.n_rot),
        "rope.freq_base": Field.float32(hparams.rope.theta),
    }
    return parameters | {f"rope.scaling.{key}": field for key, field in hparams.rope.fields.items()}
