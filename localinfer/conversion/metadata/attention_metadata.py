"""Metadata of attention and rope, computed from config.json. `architecture_metadata` explains the functions."""

from dataclasses import replace

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata.expert_metadata import experts, granite_experts
from localinfer.conversion.rope import RopeMetadata
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM, MAXIMA

Fields = dict[str, Field]
NO_ROPE_INTERVAL = 4
MAX_PERIOD = 1 << 10  # layers
BACKBONE = "backbone_hidden_size"  # the embedding length of the model of an assistant of Gemma 4
MPT_VALUES = {
    "attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False, "softmax_scale": None, "alibi": True,
}  # fmt: skip
# Llama 4: the chunk size, the temperature scale, and Maverick's number of experts
LLAMA4_CHUNK, LLAMA4_TEMPERATURE, MAVERICK_EXPERTS = 8192, 0.1, 128


def mpt(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return MPT's metadata: ALiBi, and the limit of queries, keys and values."""
    attention = config.child("attn_config")
    for key, value in MPT_VALUES.items():
        given = attention.values.get(key, value)
        if given != value:
            raise attention.error(key, f"{printable(repr(given), 40)} is not supported", UnsupportedError)
    fields = {"attention.max_alibi_bias": Field.float32(attention.positive_float("alibi_bias_max", 8.0))}
    if attention.values.get("clip_qkv") is None:
        return fields
    return fields | {"attention.clamp_kqv": Field.float32(attention.positive_float("clip_qkv"))}


def window_rope_size(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the number of rotated values of heads with a sliding window."""
    return {"rope.dimension_count_swa": Field.uint32(hp.rope_swa.n_rot)} if hp.sliding_window else {}


def plamo_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set the number of PLaMo's heads of keys, each of which as many heads of queries share."""
    shared = config.positive_int("n_shared_head", hp.n_head, 8)
    if hp.n_head % shared:
        raise config.error("n_shared_head", f"is {shared}; it must divide {hp.n_head}", UnsupportedError)
    return replace(hp, n_head_kv=hp.n_head // shared)


def require_no_rope_interval(config: JsonObject, hp: HParams) -> Fields:
    """Raise UnsupportedError unless rope is missing in every fourth layer only; GGUF has no key for another pattern."""
    uses_rope = [int((block + 1) % NO_ROPE_INTERVAL != 0) for block in range(hp.n_layer)]
    period = config.get("no_rope_layer_interval", int, NO_ROPE_INTERVAL)
    default = uses_rope if period == NO_ROPE_INTERVAL else None
    if config.get("no_rope_layers", list, default) != uses_rope:
        raise config.error("no_rope_layers", "only every fourth layer without rope is supported", UnsupportedError)
    return {}


def granite_windows(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of Granite with sliding windows: which layers have a rotary embedding, unless all have it,
    and those of experts."""
    bases = config.get("layer_rope_theta", list, [])
    if any(base not in (0, hp.rope.theta) for base in bases):
        raise config.error("layer_rope_theta", f"other than 0 or {hp.rope.theta:g} is not supported", UnsupportedError)
    rotated = [bool(each) for each in config.get("no_rope_layers", list, bases)]  # 1: the layer has one
    if rotated and len(rotated) != hp.n_layer:
        raise config.error("no_rope_layers", f"must be {hp.n_layer} numbers")
    pattern = {} if all(rotated) else {"attention.rope_pattern": Field.flags(rotated)}
    return pattern | (granite_experts(config, hp) if hp.n_expert else {})


def window_period(config: JsonObject, hp: HParams) -> Fields:
    """Return the number of layers of which one has full attention."""
    period = config.positive_int("sliding_window_pattern", MAX_PERIOD)
    return {"attention.sliding_window_pattern": Field.uint32(period)} if hp.sliding_window else {}


def smallthinker_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set SmallThinker's sliding-window layers. Without any, all layers have rotary embeddings, else only these."""
    layers: dict[str, tuple[bool, ...]] = {}
    for key, usual in (("sliding_window_layout", 0), ("rope_layout", 1)):
        layers[key] = tuple(bool(each) for each in config.get(key, list, [usual] * hp.n_layer))
        if len(layers[key]) != hp.n_layer:
            raise config.error(key, f"must be {hp.n_layer} numbers")
    sliding, rotated = layers.values()
    if rotated != (sliding if any(sliding) else (True,) * hp.n_layer):
        what = "other than the layers with a sliding window is not supported"
        raise config.error("rope_layout", what, UnsupportedError)
    if not any(sliding):
        return hp
    return replace(hp, is_sliding=sliding, sliding_window=config.positive_int("sliding_window_size", DEFAULT_MAXIMUM))


def attention_temperature(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the temperature scale: queries grow with the logarithm of position / original context length."""
    rope = config.child("rope_parameters")
    if rope.get("llama_4_scaling_beta", float, None) is None:
        return {}
    return {"attention.temperature_scale": Field.float32(rope.positive_float("llama_4_scaling_beta"))}


def llama4_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the interleave step: every `interleave`-th layer is a mixture-of-experts layer."""
    interleaved = replace(hp, moe_interleave=config.positive_int("interleave_moe_layer_step", DEFAULT_MAXIMUM, 1))
    default = [block for block in range(hp.n_layer) if interleaved.has_experts(block)]
    if config.get("moe_layers", list, default) != default:
        raise config.error(
            "moe_layers", f"only every {interleaved.moe_interleave}-th layer is supported", UnsupportedError
        )
    return interleaved


def chunked_attention(config: JsonObject, hp: HParams) -> Fields:
    """Return Llama 4's metadata: chunked attention, and temperature scaling in layers without rope.

    GGUF keys for both are written only if they differ from the default. QK normalization follows from the number of
    experts.
    """
    require_no_rope_interval(config, hp)
    if config.get("use_qk_norm", bool, True) == (hp.n_expert == MAVERICK_EXPERTS):
        raise config.error("use_qk_norm", f"for {hp.n_expert} experts is not supported", UnsupportedError)
    fields = {**experts(config, hp), "interleave_moe_layer_step": Field.uint32(hp.moe_interleave)}
    chunk_sizes = {
        "attention.sliding_window": config.positive_int("attention_chunk_size", DEFAULT_MAXIMUM, LLAMA4_CHUNK),
        "attention.temperature_length": config.positive_int("floor_scale", DEFAULT_MAXIMUM, LLAMA4_CHUNK),
    }
    fields |= {key: Field.uint32(number) for key, number in chunk_sizes.items() if number != LLAMA4_CHUNK}
    rate = (
        config.positive_float("attn_scale", LLAMA4_TEMPERATURE)
        if config.values.get("attn_temperature_tuning", True)
        else 0.0
    )
    return fields if rate == LLAMA4_TEMPERATURE else fields | {"attention.temperature_scale": Field.float32(rate)}


def original_context(config: JsonObject, hp: HParams) -> Fields:
    """Return Phi-3's original context length, also without rope scaling, and a window of 0 if there is none."""
    window = {} if hp.sliding_window else {"attention.sliding_window": Field.uint32(0)}
    if hp.rope.fields:
        return window
    length = config.positive_int("original_max_position_embeddings", DEFAULT_MAXIMUM, hp.n_ctx)
    return window | {"rope.scaling.original_context_length": Field.uint32(length)}


def rope_without_scaling(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the scaling type "none" unless config.json has rope scaling."""
    return {} if hp.rope.fields else {"rope.scaling.type": Field.text("none")}


def linear_rope_scale_one(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return linear rope scaling with factor 1."""
    return {"rope.scaling.type": Field.text("linear"), "rope.scaling.factor": Field.float32(1.0)}


def mla_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of multi-head latent attention (MLA): heads share one key. Rope rotates its last values;
    the others are the latent vector stored in the KV cache.
    """
    names, most = ("qk_nope_head_dim", "kv_lora_rank"), MAXIMA["attention.key_length"]
    n_nope, rank = (config.positive_int(name, most) for name in names)
    n_rope = config.positive_int("qk_rope_head_dim", most) if config.values.get("qk_rope_head_dim") != 0 else 0
    value = config.positive_int("v_head_dim", MAXIMA["attention.key_length"], max(1, hp.n_embd // hp.n_head))
    queries = config.positive_int("q_lora_rank", MAXIMA["embedding_length"]) if config.values.get("q_lora_rank") else 0
    sizes = {
        "n_q": hp.n_head * (n_nope + n_rope), "n_qk_rope": n_rope, "n_qk_nope": n_nope, "n_value": value,
        "n_values": hp.n_head * value, "kv_rank": rank, "n_kv_a": rank + n_rope, "q_rank": queries,
        "n_kv_b": hp.n_head * (n_nope + value),
    }  # fmt: skip
    return replace(hp, n_head_kv=1, rope=replace(mla_rope(config, hp.rope), n_rot=n_rope), sizes=sizes)


def expanded_mla_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of multi-head latent attention whose keys and values are computed for each head, from one matrix
    kv_b. Raises UnsupportedError for YaRN's scaling of scores."""
    rope = config.child("rope_scaling" if config.values.get("rope_scaling") else "rope_parameters")
    if rope.get("mscale_all_dim", float, 0.0):
        raise rope.error("mscale_all_dim", "is not supported", UnsupportedError)
    return replace(mla_hparams(config, hp), n_head_kv=hp.n_head)


def expanded_mla(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the metadata of latent attention whose keys and values are computed for each head."""
    queries = {"attention.q_lora_rank": Field.uint32(hp.sizes["q_rank"])} if hp.sizes["q_rank"] else {}
    return queries | {
        "attention.kv_lora_rank": Field.uint32(hp.sizes["kv_rank"]),
        "attention.key_length": Field.uint32(hp.sizes["n_qk_nope"] + hp.sizes["n_qk_rope"]),
        "attention.value_length": Field.uint32(hp.sizes["n_value"]),
    }


def mla_rope(config: JsonObject, rope: RopeMetadata) -> RopeMetadata:
    """Return the rope parameters with YaRN's attention scaling; GGUF stores a tenth of the logarithm's factor."""
    parameters, older = config.child("rope_parameters"), config.child("rope_scaling")
    scaling = parameters if parameters.values else older
    multiplier = scaling.get("mscale_all_dim", float, 0.0)
    if scaling.values.get("rope_type", scaling.values.get("type")) != "yarn" or not multiplier:
        return rope
    if scaling.get("mscale", float, multiplier) != multiplier:
        raise scaling.error("mscale", f"other than mscale_all_dim, {multiplier:g}, is not supported", UnsupportedError)
    fields = {key: field for key, field in rope.fields.items() if key != "attn_factor"}
    return replace(rope, fields=fields | {"yarn_log_multiplier": Field.float32(0.1 * multiplier)})


def mla(config: JsonObject, hp: HParams) -> Fields:
    """Return MLA's metadata: the head shape in the KV cache, the expanded head shape (`mla`), and expert routing."""
    rank, n_rope = hp.sizes["kv_rank"], hp.sizes["n_qk_rope"]
    fields = {
        "attention.kv_lora_rank": Field.uint32(rank),
        "attention.key_length": Field.uint32(rank + n_rope),
        "attention.value_length": Field.uint32(rank),
        "attention.key_length_mla": Field.uint32(hp.sizes["n_qk_nope"] + n_rope),
        "attention.value_length_mla": Field.uint32(hp.sizes["n_value"]),
    }
    if hp.sizes["q_rank"]:
        fields["attention.q_lora_rank"] = Field.uint32(hp.sizes["q_rank"])
    for key, name in (("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")):
        if config.values.get(key) is not None:
            fields[name] = Field.uint32(config.positive_int(key, hp.n_expert))
    if config.get("norm_topk_prob", bool, False):
        fields["expert_weights_norm"] = Field.flag(True)
    gating = {"softmax": 1, "sigmoid": 2}
    function = config.get("scoring_func", str, "softmax")
    if function not in gating:
        raise config.error("scoring_func", f"must be {' or '.join(gating)}", UnsupportedError)
    return experts(config, hp) | fields | {"expert_gating_func": Field.uint32(gating[function])}


def mla_with_temperature(config: JsonObject, hp: HParams) -> Fields:
    """Return MLA's metadata with temperature scaling of queries."""
    grows = attention_temperature(config, hp)
    length = {"attention.temperature_length": hp.rope.fields["original_context_length"]} if grows else {}
    return mla(config, hp) | grows | length


def shared_kv_layers(config: JsonObject, hp: HParams) -> int:
    """Return the number of last layers that share the KV cache of earlier layers. All layers of an assistant of Gemma 4
    use that of its model, also if config.json does not tell.
    """
    count = config.get("num_kv_shared_layers", int, 0)
    if BACKBONE in config.values:
        if count not in (0, hp.n_layer):
            raise config.error("num_kv_shared_layers", f"is {count}; it must be {hp.n_layer}, the number of layers")
        return hp.n_layer
    if not 0 <= count < hp.n_layer:
        raise config.error("num_kv_shared_layers", f"is {count}; it must be 0 to {hp.n_layer - 1}")
    return count
