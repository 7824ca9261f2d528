"""Metadata of single architectures that must be computed or checked from config.json -> GGUF's keys.

Each function takes config.json and the model's hyperparameters. `*_hparams` functions return the hyperparameters
with additions; the others return fields by keys without the architecture's prefix.
"""

from dataclasses import replace
from statistics import NormalDist

import numpy as np

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.rope import RopeMetadata
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field
from localinfer.graph.hyperparameters import DEFAULT_MAXIMUM, MAXIMA
from localinfer.graph.pooling import POOLINGS

Fields = dict[str, Field]
NO_ROPE_INTERVAL = 4
LLAMA4_CHUNK, LLAMA4_TEMPERATURE, MAVERICK_EXPERTS = (
    8192,
    0.1,
    128,
)  # Llama 4's chunk size, temperature scale, and Maverick's number of experts
UNLIMITED_CONTEXT = {"context_length": Field.uint32(1 << 20)}  # without positions, any context length works


def minicpm_scales(config: JsonObject, hp: HParams) -> Fields:
    """Return MiniCPM's scales: branches scaled by depth, logits by the width relative to the tuned base model."""
    return {
        "embedding_scale": Field.float32(config.positive_float("scale_emb")),
        "residual_scale": Field.float32(config.positive_float("scale_depth") / hp.n_layer**0.5),
        "logit_scale": Field.float32(hp.n_embd / config.positive_float("dim_model_base")),
    }


def require_no_rope_interval(config: JsonObject, hp: HParams) -> Fields:
    """Raise UnsupportedError unless rope is missing in every fourth layer only; GGUF has no key for another pattern."""
    uses_rope = [int((block + 1) % NO_ROPE_INTERVAL != 0) for block in range(hp.n_layer)]
    period = config.get("no_rope_layer_interval", int, NO_ROPE_INTERVAL)
    default = uses_rope if period == NO_ROPE_INTERVAL else None
    if config.get("no_rope_layers", list, default) != uses_rope:
        raise config.error("no_rope_layers", "only every fourth layer without rope is supported", UnsupportedError)
    return {}


def attention_temperature(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the temperature scale: queries grow with the logarithm of position / original context length."""
    rope = config.child("rope_parameters")
    if rope.get("llama_4_scaling_beta", float, None) is None:
        return {}
    return {"attention.temperature_scale": Field.float32(rope.positive_float("llama_4_scaling_beta"))}


def llama4_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the interleave step: every `interleave`-th layer is a mixture-of-experts layer."""
    found = replace(hp, moe_interleave=config.positive_int("interleave_moe_layer_step", DEFAULT_MAXIMUM, 1))
    default = [block for block in range(hp.n_layer) if found.has_experts(block)]
    if config.get("moe_layers", list, default) != default:
        raise config.error("moe_layers", f"only every {found.moe_interleave}-th layer is supported", UnsupportedError)
    return found


def chunked_attention(config: JsonObject, hp: HParams) -> Fields:
    """Return Llama 4's metadata: chunked attention, and temperature scaling in layers without rope.

    GGUF keys for both are written only if they differ from the default. QK normalization follows from the number of
    experts.
    """
    require_no_rope_interval(config, hp)
    if config.get("use_qk_norm", bool, True) == (hp.n_expert == MAVERICK_EXPERTS):
        raise config.error("use_qk_norm", f"for {hp.n_expert} experts is not supported", UnsupportedError)
    found = {**experts(config, hp), "interleave_moe_layer_step": Field.uint32(hp.moe_interleave)}
    chunk_sizes = {
        "attention.sliding_window": config.positive_int("attention_chunk_size", DEFAULT_MAXIMUM, LLAMA4_CHUNK),
        "attention.temperature_length": config.positive_int("floor_scale", DEFAULT_MAXIMUM, LLAMA4_CHUNK),
    }
    found |= {key: Field.uint32(number) for key, number in chunk_sizes.items() if number != LLAMA4_CHUNK}
    rate = (
        config.positive_float("attn_scale", LLAMA4_TEMPERATURE)
        if config.values.get("attn_temperature_tuning", True)
        else 0.0
    )
    return found if rate == LLAMA4_TEMPERATURE else found | {"attention.temperature_scale": Field.float32(rate)}


def original_context(config: JsonObject, hp: HParams) -> Fields:
    """Return Phi-3's original context length, also without rope scaling, and a window of 0 if there is none."""
    window = {} if hp.sliding_window else {"attention.sliding_window": Field.uint32(0)}
    if hp.rope.fields:
        return window
    length = config.positive_int("original_max_position_embeddings", DEFAULT_MAXIMUM, hp.n_ctx)
    return window | {"rope.scaling.original_context_length": Field.uint32(length)}


def falcon_layout(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the tensor data layout "jploski": queries, keys and values are sorted by kind."""
    return {"tensor_data_layout": Field.text("jploski")}


def rope_without_scaling(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the scaling type "none" unless config.json has rope scaling."""
    return {} if hp.rope.fields else {"rope.scaling.type": Field.text("none")}


def linear_rope_scale_one(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return linear rope scaling with factor 1."""
    return {"rope.scaling.type": Field.text("linear"), "rope.scaling.factor": Field.float32(1.0)}


def modern_bert(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the activation and the classifier's pooling, which differ between models."""
    pooling = config.get("classifier_pooling", str, "cls")
    if pooling not in ("cls", "mean"):
        raise config.error("classifier_pooling", "is neither cls nor mean", UnsupportedError)
    return {
        "hidden_activation": Field.text(config.get("hidden_act", str, "gelu")),
        "classifier.pooling_type": Field.uint32(POOLINGS.index(pooling)),
    }


def sigmoid_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of experts with sigmoid gating (2 in GGUF)."""
    return experts(config, hp) | {"expert_gating_func": Field.uint32(2)}


def glm_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return GLM's expert metadata; the number of MTP layers is always written."""
    return sigmoid_experts(config, hp) | {"nextn_predict_layers": Field.uint32(hp.n_mtp_layers)}


def granite_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return Granite's expert metadata; some models have no shared expert."""
    shared = {"expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared)}
    return experts(config, hp) | (shared if config.values.get("shared_expert_intermediate_size") else {})


def ernie_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return Ernie's expert metadata; all layers after the leading dense ones must have experts."""
    if config.get("moe_layer_end_index", int, -1) not in (-1, hp.n_layer - 1):
        raise config.error(
            "moe_layer_end_index", "dense layers after layers with experts are not supported", UnsupportedError
        )
    more = {
        "interleave_moe_layer_step": Field.uint32(1),
        "expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared),
    }
    return experts(config, hp) | more


def hunyuan_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set the shared experts' feed-forward length, a multiple of the dense one."""
    return replace(hp, n_ff_shared=hp.n_ff * config.positive_int("n_shared_experts", DEFAULT_MAXIMUM, 1))


def hunyuan_experts(config: JsonObject, hp: HParams) -> Fields:
    shared = config.positive_int("n_shared_experts", DEFAULT_MAXIMUM, 1)
    return experts(config, hp) | {
        "expert_shared_count": Field.uint32(shared),
        "expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared),
    }


def phi_experts(config: JsonObject, hp: HParams) -> Fields:
    return experts(config, hp) | original_context(config, hp)


def mla_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of multi-head latent attention (MLA): heads share one key. Rope rotates its last values;
    the others are the latent vector stored in the KV cache.
    """
    names = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank")
    n_rope, n_nope, value, rank = (config.positive_int(name, MAXIMA["attention.key_length"]) for name in names)
    queries = config.positive_int("q_lora_rank", MAXIMA["embedding_length"]) if config.values.get("q_lora_rank") else 0
    own = {
        "n_q": hp.n_head * (n_nope + n_rope), "n_qk_rope": n_rope, "n_qk_nope": n_nope, "n_value": value,
        "n_values": hp.n_head * value, "kv_rank": rank, "n_kv_a": rank + n_rope, "q_rank": queries,
        "n_kv_b": hp.n_head * (n_nope + value),
    }  # fmt: skip
    return replace(hp, n_head_kv=1, rope=replace(mla_rope(config, hp.rope), n_rot=n_rope), sizes=own)


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
    found = {
        "attention.kv_lora_rank": Field.uint32(rank),
        "attention.key_length": Field.uint32(rank + n_rope),
        "attention.value_length": Field.uint32(rank),
        "attention.key_length_mla": Field.uint32(hp.sizes["n_qk_nope"] + n_rope),
        "attention.value_length_mla": Field.uint32(hp.sizes["n_value"]),
    }
    if hp.sizes["q_rank"]:
        found["attention.q_lora_rank"] = Field.uint32(hp.sizes["q_rank"])
    for key, name in (("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")):
        if config.values.get(key) is not None:
            found[name] = Field.uint32(config.positive_int(key, hp.n_expert))
    if config.get("norm_topk_prob", bool, False):
        found["expert_weights_norm"] = Field.flag(True)
    gating = {"softmax": 1, "sigmoid": 2}
    function = config.get("scoring_func", str, "softmax")
    if function not in gating:
        raise config.error("scoring_func", f"must be {' or '.join(gating)}", UnsupportedError)
    return experts(config, hp) | found | {"expert_gating_func": Field.uint32(gating[function])}


def mla_with_temperature(config: JsonObject, hp: HParams) -> Fields:
    """Return MLA's metadata with temperature scaling of queries."""
    grows = attention_temperature(config, hp)
    length = {"attention.temperature_length": hp.rope.fields["original_context_length"]} if grows else {}
    return mla(config, hp) | grows | length


def lfm2_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the convolution width and the feed-forward length, given or computed."""
    n_ff = hp.n_ff
    if config.get("block_auto_adjust_ff_dim", bool, True):
        multiple = config.positive_int("block_multiple_of", DEFAULT_MAXIMUM, 256)
        n_ff = int(config.positive_float("block_ffn_dim_multiplier", 1.0) * int(2 * n_ff / 3))
        n_ff = -(-n_ff // multiple) * multiple
    own = {"n_3embd": 3 * hp.n_embd, "width": config.positive_int("conv_L_cache", DEFAULT_MAXIMUM, 3)}
    return replace(hp, n_ff=n_ff, sizes=own)


def short_convolutions(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the convolution width; convolution layers have no KV heads."""
    heads = np.array([hp.n_head_kv if kind == "full_attention" else 0 for kind in hp.layer_types], np.int32)
    return {"shortconv.l_cache": Field.uint32(hp.sizes["width"]), "attention.head_count_kv": Field.numbers(heads)}


def lfm2_moe_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Use the given feed-forward length for layers without experts."""
    return replace(lfm2_hparams(config, hp), n_ff=hp.n_ff)


def short_convolutions_moe(config: JsonObject, hp: HParams) -> Fields:
    return short_convolutions(config, hp) | sigmoid_experts(config, hp)


def delta_net_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the number of recurrent heads and the lengths of their keys and values."""
    heads, groups, key, value = (
        config.positive_int(f"linear_{name}", DEFAULT_MAXIMUM)
        for name in ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim")
    )
    if heads % groups:
        raise config.error("linear_num_key_heads", f"is {groups}; it must divide {heads}")
    convolved = 2 * groups * key + heads * value
    own = {
        "n_heads": heads, "n_groups": groups, "n_key": key, "n_value": value, "n_values": heads * value,
        "n_convolved": convolved, "width": config.positive_int("linear_conv_kernel_dim", DEFAULT_MAXIMUM, 4),
        "n_2q": 2 * hp.n_q,
        "n_2heads": 2 * heads, "n_in": convolved + heads * value,
    }  # fmt: skip
    return replace(hp, sizes=own)


def mamba2_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the number of recurrent heads and the lengths of their keys and values (Mamba-2)."""
    names = ("n_heads", "d_head", "d_state", "n_groups")
    heads, value, key, groups = (config.positive_int(f"mamba_{name}", DEFAULT_MAXIMUM) for name in names)
    convolved = heads * value + 2 * groups * key
    if heads % groups:
        raise config.error("mamba_n_groups", f"is {groups}; it must divide {heads}")
    own = {
        "n_heads": heads, "n_groups": groups, "n_key": key, "n_value": value, "n_values": heads * value,
        "n_convolved": convolved, "n_in": heads * value + convolved + heads, "n_of_group": heads // groups * value,
        "width": config.positive_int("mamba_d_conv", DEFAULT_MAXIMUM, 4),
    }  # fmt: skip
    return replace(hp, sizes=own)


def mamba_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the state size per channel and the rank of the time step projection (Mamba)."""
    auto = config.values.get("time_step_rank") == "auto"
    rank = -(-hp.n_embd // 16) if auto else config.positive_int("time_step_rank", DEFAULT_MAXIMUM)
    size = config.positive_int("mamba_d_state", DEFAULT_MAXIMUM, 16)
    own = {
        "n_values": hp.n_ff, "n_convolved": hp.n_ff, "n_in": 2 * hp.n_ff, "n_key": size, "rank": rank,
        "n_x": rank + 2 * size, "width": config.positive_int("mamba_d_conv", DEFAULT_MAXIMUM, 4),
    }  # fmt: skip
    return replace(hp, sizes=own)


def mamba(config: JsonObject, hp: HParams, *, normed: bool = False) -> Fields:  # noqa: ARG001
    """Return the shape of the recurrent states, and whether dt, B and C are normalized (`normed`)."""
    shape = {"conv_kernel": "width", "state_size": "n_key", "time_step_rank": "rank", "inner_size": "n_values"}
    found = {f"ssm.{key}": Field.uint32(hp.sizes[name]) for key, name in shape.items()}
    return found | {"ssm.dt_b_c_rms": Field.flag(normed)}


def mamba_with_norms(config: JsonObject, hp: HParams) -> Fields:
    return mamba(config, hp, normed=True)


def falcon_h1_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add Falcon-H1's activation multipliers as factors of the matrices that produce or consume the activations."""
    hp = mamba2_hparams(config, hp)
    embedding, output, attention, attention_output, key, recurrent, recurrent_output = (
        config.positive_float(f"{name}_multiplier", 1.0)
        for name in ("embedding", "lm_head", "attention_in", "attention_out", "key", "ssm_in", "ssm_out")
    )
    gate, down = read_multipliers(config, "mlp_multipliers", 2)
    if hp.tied_embeddings and embedding != output:
        what = f"is true, but the embedding is multiplied with {embedding:g} and the output layer with {output:g}"
        raise config.error("tie_word_embeddings", what, UnsupportedError)
    groups = hp.sizes["n_groups"] * hp.sizes["n_key"]
    rows = [hp.sizes["n_values"], hp.sizes["n_values"], groups, groups, hp.sizes["n_heads"]]
    of_rows = np.repeat(np.array(read_multipliers(config, "ssm_multipliers", len(rows))), rows)[:, None]
    factors = {
        "token_embd": embedding, "output": output, "attn_q": attention, "attn_k": attention * key, "attn_v": attention,
        "attn_output": attention_output, "ssm_in": recurrent * of_rows, "ssm_out": recurrent_output, "ffn_gate": gate,
        "ffn_down": down,
    }  # fmt: skip
    return replace(hp, weight_factors={kind: np.asarray(factor, np.float32) for kind, factor in factors.items()})


def read_multipliers(config: JsonObject, key: str, count: int) -> list[float]:
    """Return `count` positive numbers from a list; all 1 if the key is missing."""
    given = config.get(key, list, [1.0] * count)
    if len(given) != count or not all(type(each) in (int, float) and 0 < each < 1e30 for each in given):
        raise config.error(key, f"must be {count} numbers above 0")
    return given


def rwkv_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the low ranks and the number of heads, which together make up the embedding."""
    if hp.n_embd % hp.head_dim:
        raise config.error("head_dim", f"is {hp.head_dim}; it must divide {hp.n_embd}")
    names = {"decay_rank": "decay", "rate_rank": "a", "value_rank": "v", "gate_rank": "gate"}
    ranks = {rank: config.positive_int(f"{name}_low_rank_dim", hp.n_embd) for rank, name in names.items()}
    return replace(hp, sizes={**ranks, "n_heads": hp.n_embd // hp.head_dim, "n_lerps": 6})


def rwkv_metadata(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return RWKV-7's metadata. The context length is nominal: a recurrent state has no limit."""
    keys = {"decay": "decay_rank", "iclr": "rate_rank", "value_residual_mix": "value_rank", "gate": "gate_rank"}
    return {
        **UNLIMITED_CONTEXT,
        "feed_forward_length": Field.uint32(hp.n_ff),
        "wkv.head_size": Field.uint32(hp.head_dim),
        **{f"attention.{key}_lora_rank": Field.uint32(hp.sizes[rank]) for key, rank in keys.items()},
    }


def delta_net_moe(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of gated delta net layers and of experts."""
    return delta_net(config, hp) | experts(config, hp)


def qwen3next(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata without multimodal rope sections."""
    fields = delta_net_moe(config, hp)
    return {key: field for key, field in fields.items() if key != "rope.dimension_sections"}


def ssm_shape(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the shape of recurrent heads."""
    shape = {
        "conv_kernel": "width", "state_size": "n_key", "group_count": "n_groups", "time_step_rank": "n_heads",
        "inner_size": "n_values",
    }  # fmt: skip
    return {f"ssm.{key}": Field.uint32(hp.sizes[name]) for key, name in shape.items()}


def granite_hybrid(config: JsonObject, hp: HParams) -> Fields:
    """Return Granite 4's hybrid metadata. Recurrent layers have no KV heads; attention layers usually have no rope."""
    uses_rope = config.get("position_embedding_type", str, "nope") == "rope"
    heads = np.array([hp.n_head_kv if kind == "full_attention" else 0 for kind in hp.layer_types], np.int32)
    found = (
        ssm_shape(config, hp)
        | ({} if uses_rope else UNLIMITED_CONTEXT)
        | {
            "attention.head_count_kv": Field.numbers(heads),
            "rope.scaling.finetuned": Field.flag(uses_rope),
            "expert_shared_feed_forward_length": Field.uint32(
                config.positive_int("shared_expert_intermediate_size", DEFAULT_MAXIMUM)
            ),
        }
    )
    return found | (experts(config, hp) if hp.n_expert else {})


def granite_without_states(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the metadata of a model with rope, which is required without recurrent layers."""
    if config.get("position_embedding_type", str, "rope") != "rope":
        raise config.error("position_embedding_type", "must be rope where no layer is recurrent", UnsupportedError)
    return {"rope.scaling.finetuned": Field.flag(True)}


def nemotron_h(config: JsonObject, hp: HParams) -> Fields:
    """Return Nemotron-H's metadata. Each layer has one type: KV heads are set for attention layers, and the
    feed-forward length for MLP layers.
    """
    kinds = {"attention.head_count_kv": ("full_attention", hp.n_head_kv), "feed_forward_length": ("mlp", hp.n_ff)}
    if hp.n_expert:
        kinds["feed_forward_length"] = "moe", hp.n_ff_expert
    found = {
        key: Field.numbers(np.array([number if kind == of else 0 for of in hp.layer_types], np.int32))
        for key, (kind, number) in kinds.items()
    }
    return ssm_shape(config, hp) | found | UNLIMITED_CONTEXT


def nemotron_h_moe(config: JsonObject, hp: HParams) -> Fields:
    shared = {"expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared)}
    return nemotron_h(config, hp) | experts(config, hp) | shared


def latent_moe_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the length of the latent vectors that experts process."""
    hp = mamba2_hparams(config, hp)
    latent = config.positive_int("moe_latent_size", MAXIMA["embedding_length"])
    return replace(hp, sizes={**hp.sizes, "n_latent": latent})


def nemotron_h_latent_moe(config: JsonObject, hp: HParams) -> Fields:
    return nemotron_h_moe(config, hp) | {"moe_latent_size": Field.uint32(hp.sizes["n_latent"])}


def delta_net(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of recurrent layers: their indices and the shape of their states."""
    default = config.child("rope_scaling").get("mrope_section", list, [11, 11, 10])  # the key of older files
    sections = config.child("rope_parameters").get("mrope_section", list, default)
    return {
        **ssm_shape(config, hp),
        "full_attention_interval": Field.uint32(config.positive_int("full_attention_interval", DEFAULT_MAXIMUM, 4)),
        "attention.recurrent_layers": Field.flags([kind != "full_attention" for kind in hp.layer_types]),
        "rope.dimension_sections": Field.numbers(np.array([*sections, 0, 0, 0, 0][:4], np.int32)),
    }


def gemma3n_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add Gemma 3n's residual streams (AltUp), the rank of LAuReL and the vocabulary of the per-layer embeddings."""
    count = config.positive_int("altup_num_inputs", 16)
    if count < 2:
        raise config.error("altup_num_inputs", f"is {count}; there must be 2 at least")
    own = {
        "n_streams": count, "n_others": count - 1, "n_streams_squared": count**2,
        "rank": config.positive_int("laurel_rank", DEFAULT_MAXIMUM),
        "n_vocab_input": config.positive_int("vocab_size_per_layer_input", hp.n_vocab),
    }  # fmt: skip
    return replace(hp, sizes=own)


def gemma3n_metadata(config: JsonObject, hp: HParams) -> Fields:
    """Return Gemma 3n's metadata, including the gate threshold in standard deviations that yields config.json's
    activation sparsity.
    """
    sparsities = config.get("activation_sparsity_pattern", list)
    if len(sparsities) != hp.n_layer or not all(type(each) in (int, float) and 0 <= each < 1 for each in sparsities):
        raise config.error("activation_sparsity_pattern", f"must be {hp.n_layer} numbers, from 0 on and below 1")
    thresholds = [NormalDist().inv_cdf(sparsity) if sparsity else -np.inf for sparsity in sparsities]
    return {
        "altup.active_idx": Field.uint32(0),
        "altup.num_inputs": Field.uint32(hp.sizes["n_streams"]),
        "activation_sparsity_scale": Field.numbers(np.array(thresholds, np.float32)),
        "attention.shared_kv_layers": Field.uint32(shared_kv_layers(config, hp)),
        "embedding_length_per_layer_input": Field.uint32(hp.n_embd_per_layer),
        "feed_forward_length": Field.numbers(np.full(hp.n_layer, hp.n_ff, np.int32)),
    }


def shared_kv_layers(config: JsonObject, hp: HParams) -> int:
    """Return the number of last layers that share the KV cache of earlier layers."""
    count = config.get("num_kv_shared_layers", int, 0)
    if not 0 <= count < hp.n_layer:
        raise config.error("num_kv_shared_layers", f"is {count}; it must be 0 to {hp.n_layer - 1}")
    return count


def experts(config: JsonObject, hp: HParams) -> Fields:
    """Return the number of experts, the number used per token, and their feed-forward length if it differs."""
    found = {
        "expert_count": Field.uint32(hp.n_expert),
        "expert_used_count": Field.uint32(config.positive_int("num_experts_per_tok", hp.n_expert)),
    }
    if "moe_intermediate_size" in config.values:
        found["expert_feed_forward_length"] = Field.uint32(hp.n_ff_expert)
    return found
