"""What config.json says of one architecture alone, and has to be computed or checked -> GGUF's keys.

A function takes config.json and the model's numbers, and gives keys without the architecture's name.
"""

from dataclasses import replace
from statistics import NormalDist

import numpy as np

from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.numbers import Numbers
from localinfer.checkpoint.rope import Rope
from localinfer.errors import Unsupported
from localinfer.files.source import Field
from localinfer.plan.keys import LARGEST, MOST
from localinfer.plan.pooling import POOLINGS

Fields = dict[str, Field]
PERIOD_WITHOUT_ROPE = 4
STRETCH, GROWTH, MAVERICK = 8192, 0.1, 128  # of Llama 4: positions, the rate of queries, experts of the larger one
ENDLESS = {"context_length": Field.uint32(1 << 20)}  # where nothing tells distances, a text of any length will do


def scales_of_minicpm(config: Table, n: Numbers) -> Fields:
    """Its branches are scaled by its depth, its logits by how much wider it is than the model that was tuned."""
    return {
        "embedding_scale": Field.float32(config.positive("scale_emb")),
        "residual_scale": Field.float32(config.positive("scale_depth") / n.n_layer**0.5),
        "logit_scale": Field.float32(n.n_embd / config.positive("dim_model_base")),
    }


def each_fourth_without_rope(config: Table, n: Numbers) -> Fields:
    """GGUF has no key for which layers turn: it is always all but each fourth."""
    turns = [int((block + 1) % PERIOD_WITHOUT_ROPE != 0) for block in range(n.n_layer)]
    period = config.get("no_rope_layer_interval", int, PERIOD_WITHOUT_ROPE)
    usual = turns if period == PERIOD_WITHOUT_ROPE else None
    if config.get("no_rope_layers", list, usual) != turns:
        raise config.error("no_rope_layers", "others than each fourth are not supported", Unsupported)
    return {}


def growing_temperature(config: Table, n: Numbers) -> Fields:  # noqa: ARG001
    """Queries grow with the logarithm of how often the original context goes into their position."""
    rope = config.table("rope_parameters")
    if rope.get("llama_4_scaling_beta", float, None) is None:
        return {}
    return {"attention.temperature_scale": Field.float32(rope.positive("llama_4_scaling_beta"))}


def numbers_of_llama4(config: Table, n: Numbers) -> Numbers:
    """Every so manieth block has experts."""
    found = replace(n, experts_step=config.count("interleave_moe_layer_step", MOST, 1))
    usual = [block for block in range(n.n_layer) if found.has_experts(block)]
    if config.get("moe_layers", list, usual) != usual:
        raise config.error("moe_layers", f"others than each {found.experts_step}. are not supported", Unsupported)
    return found


def stretches(config: Table, n: Numbers) -> Fields:
    """Positions lie in stretches, and queries grow without them; GGUF has keys for both, but files seldom have them.
    Whether heads are normalised follows from the number of experts."""
    each_fourth_without_rope(config, n)
    if config.get("use_qk_norm", bool, True) == (n.n_expert == MAVERICK):
        raise config.error("use_qk_norm", f"for {n.n_expert} experts is not supported", Unsupported)
    found = {**experts(config, n), "interleave_moe_layer_step": Field.uint32(n.experts_step)}
    unusual = {
        "attention.sliding_window": config.count("attention_chunk_size", MOST, STRETCH),
        "attention.temperature_length": config.count("floor_scale", MOST, STRETCH),
    }
    found |= {key: Field.uint32(number) for key, number in unusual.items() if number != STRETCH}
    rate = config.positive("attn_scale", GROWTH) if config.values.get("attn_temperature_tuning", True) else 0.0
    return found if rate == GROWTH else found | {"attention.temperature_scale": Field.float32(rate)}


def original_context(config: Table, n: Numbers) -> Fields:
    """Phi-3 says it also without scaling, and a window of 0 where there is none."""
    window = {} if n.window else {"attention.sliding_window": Field.uint32(0)}
    if n.rope.fields:
        return window
    length = config.count("original_max_position_embeddings", MOST, n.n_ctx)
    return window | {"rope.scaling.original_context_length": Field.uint32(length)}


def layout_of_falcon(config: Table, n: Numbers) -> Fields:  # noqa: ARG001
    """Queries, keys and values are sorted by kind: the name is that of who began it."""
    return {"tensor_data_layout": Field.text("jploski")}


def not_scaled(config: Table, n: Numbers) -> Fields:  # noqa: ARG001
    """Positions are as they are, and GGUF says so, unless config.json says something else."""
    return {} if n.rope.fields else {"rope.scaling.type": Field.text("none")}


def unscaled(config: Table, n: Numbers) -> Fields:  # noqa: ARG001
    return {"rope.scaling.type": Field.text("linear"), "rope.scaling.factor": Field.float32(1.0)}


def gate_of_modern_bert(config: Table, n: Numbers) -> Fields:  # noqa: ARG001
    """Some of its kind have another activation, and a classifier of the mean."""
    pooling = config.get("classifier_pooling", str, "cls")
    if pooling not in ("cls", "mean"):
        raise config.error("classifier_pooling", "is neither cls nor mean", Unsupported)
    return {
        "hidden_activation": Field.text(config.get("hidden_act", str, "gelu")),
        "classifier.pooling_type": Field.uint32(POOLINGS.index(pooling)),
    }


def sigmoid_experts(config: Table, n: Numbers) -> Fields:
    """Chosen by a logistic function, which GGUF has a number for."""
    return experts(config, n) | {"expert_gating_func": Field.uint32(2)}


def experts_of_glm(config: Table, n: Numbers) -> Fields:
    """Whether there are blocks that predict further tokens is said in any case."""
    return sigmoid_experts(config, n) | {"nextn_predict_layers": Field.uint32(n.n_ahead)}


def experts_of_granite(config: Table, n: Numbers) -> Fields:
    """Some models have no shared expert."""
    shared = {"expert_shared_feed_forward_length": Field.uint32(n.n_ff_shared)}
    return experts(config, n) | (shared if config.values.get("shared_expert_intermediate_size") else {})


def experts_of_ernie(config: Table, n: Numbers) -> Fields:
    """All blocks behind the first ones have experts."""
    if config.get("moe_layer_end_index", int, -1) not in (-1, n.n_layer - 1):
        raise config.error("moe_layer_end_index", "blocks behind those with experts are not supported", Unsupported)
    more = {
        "interleave_moe_layer_step": Field.uint32(1),
        "expert_shared_feed_forward_length": Field.uint32(n.n_ff_shared),
    }
    return experts(config, n) | more


def numbers_of_hunyuan(config: Table, n: Numbers) -> Numbers:
    """Shared experts are as wide as it says of networks without experts."""
    return replace(n, n_ff_shared=n.n_ff * config.count("n_shared_experts", MOST, 1))


def experts_of_hunyuan(config: Table, n: Numbers) -> Fields:
    shared = config.count("n_shared_experts", MOST, 1)
    return experts(config, n) | {
        "expert_shared_count": Field.uint32(shared),
        "expert_shared_feed_forward_length": Field.uint32(n.n_ff_shared),
    }


def experts_of_phi(config: Table, n: Numbers) -> Fields:
    return experts(config, n) | original_context(config, n)


def numbers_of_latent(config: Table, n: Numbers) -> Numbers:
    """Heads share one key, whose last values turn; the others are the latent vector that is kept of a token."""
    names = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank")
    turning, plain, value, rank = (config.count(name, LARGEST["attention.key_length"]) for name in names)
    queries = config.count("q_lora_rank", LARGEST["embedding_length"]) if config.values.get("q_lora_rank") else 0
    own = {
        "n_q": n.n_head * (plain + turning), "n_turning": turning, "n_plain": plain, "n_value": value,
        "n_values": n.n_head * value, "kv_rank": rank, "n_kv_a": rank + turning, "q_rank": queries,
        "n_kv_b": n.n_head * (plain + value),
    }  # fmt: skip
    return replace(n, n_head_kv=1, rope=replace(rope_of_latent(config, n.rope), n_rot=turning), sizes=own)


def rope_of_latent(config: Table, rope: Rope) -> Rope:
    """YaRN makes all of a score larger: GGUF has a tenth of the factor of the logarithm in that."""
    parameters, older = config.table("rope_parameters"), config.table("rope_scaling")
    scaling = parameters if parameters.values else older
    multiplier = scaling.get("mscale_all_dim", float, 0.0)
    if scaling.values.get("rope_type", scaling.values.get("type")) != "yarn" or not multiplier:
        return rope
    if scaling.get("mscale", float, multiplier) != multiplier:
        raise scaling.error("mscale", f"other than mscale_all_dim, {multiplier:g}, is not supported", Unsupported)
    fields = {key: field for key, field in rope.fields.items() if key != "attn_factor"}
    return replace(rope, fields=fields | {"yarn_log_multiplier": Field.float32(0.1 * multiplier)})


def latent(config: Table, n: Numbers) -> Fields:
    """The shape of heads in the cache, and of those that a head stands for (`mla`); how experts are chosen."""
    rank, turning = n.sizes["kv_rank"], n.sizes["n_turning"]
    found = {
        "attention.kv_lora_rank": Field.uint32(rank),
        "attention.key_length": Field.uint32(rank + turning),
        "attention.value_length": Field.uint32(rank),
        "attention.key_length_mla": Field.uint32(n.sizes["n_plain"] + turning),
        "attention.value_length_mla": Field.uint32(n.sizes["n_value"]),
    }
    if n.sizes["q_rank"]:
        found["attention.q_lora_rank"] = Field.uint32(n.sizes["q_rank"])
    for key, name in (("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")):
        if config.values.get(key) is not None:
            found[name] = Field.uint32(config.count(key, n.n_expert))
    if config.get("norm_topk_prob", bool, False):
        found["expert_weights_norm"] = Field.flag(True)
    gating = {"softmax": 1, "sigmoid": 2}
    function = config.get("scoring_func", str, "softmax")
    if function not in gating:
        raise config.error("scoring_func", f"must be {' or '.join(gating)}", Unsupported)
    return experts(config, n) | found | {"expert_gating_func": Field.uint32(gating[function])}


def growing_latent(config: Table, n: Numbers) -> Fields:
    """The same, with queries that grow."""
    grows = growing_temperature(config, n)
    length = {"attention.temperature_length": n.rope.fields["original_context_length"]} if grows else {}
    return latent(config, n) | grows | length


def numbers_of_lfm2(config: Table, n: Numbers) -> Numbers:
    """Convolutions are so many tokens wide; the feed-forward network is as wide as is said, or computed from that."""
    n_ff = n.n_ff
    if config.get("block_auto_adjust_ff_dim", bool, True):
        multiple = config.count("block_multiple_of", MOST, 256)
        n_ff = int(config.positive("block_ffn_dim_multiplier", 1.0) * int(2 * n_ff / 3))
        n_ff = -(-n_ff // multiple) * multiple
    own = {"n_3embd": 3 * n.n_embd, "width": config.count("conv_L_cache", MOST, 3)}
    return replace(n, n_ff=n_ff, sizes=own)


def short_convolutions(config: Table, n: Numbers) -> Fields:  # noqa: ARG001
    """Their width; blocks that have them have no heads of keys."""
    heads = np.array([n.n_head_kv if kind == "full_attention" else 0 for kind in n.kinds], np.int32)
    return {"shortconv.l_cache": Field.uint32(n.sizes["width"]), "attention.head_count_kv": Field.numbers(heads)}


def numbers_of_lfm2_with_experts(config: Table, n: Numbers) -> Numbers:
    """The feed-forward network of blocks without experts is as wide as is said."""
    return replace(numbers_of_lfm2(config, n), n_ff=n.n_ff)


def short_convolutions_with_experts(config: Table, n: Numbers) -> Fields:
    return short_convolutions(config, n) | sigmoid_experts(config, n)


def numbers_of_delta_net(config: Table, n: Numbers) -> Numbers:
    """How many recurrent heads there are, and how long their keys and values are."""
    heads, groups, key, value = (
        config.count(f"linear_{name}", MOST)
        for name in ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim")
    )
    if heads % groups:
        raise config.error("linear_num_key_heads", f"is {groups}; it must divide {heads}")
    convolved = 2 * groups * key + heads * value
    own = {
        "n_heads": heads, "n_groups": groups, "n_key": key, "n_value": value, "n_values": heads * value,
        "n_convolved": convolved, "width": config.count("linear_conv_kernel_dim", MOST, 4), "n_2q": 2 * n.n_q,
        "n_2heads": 2 * heads, "n_in": convolved + heads * value,
    }  # fmt: skip
    return replace(n, sizes=own)


def numbers_of_mamba2(config: Table, n: Numbers) -> Numbers:
    """The same of its recurrent heads."""
    names = ("n_heads", "d_head", "d_state", "n_groups")
    heads, value, key, groups = (config.count(f"mamba_{name}", MOST) for name in names)
    convolved = heads * value + 2 * groups * key
    if heads % groups:
        raise config.error("mamba_n_groups", f"is {groups}; it must divide {heads}")
    own = {
        "n_heads": heads, "n_groups": groups, "n_key": key, "n_value": value, "n_values": heads * value,
        "n_convolved": convolved, "n_in": heads * value + convolved + heads, "n_of_group": heads // groups * value,
        "width": config.count("mamba_d_conv", MOST, 4),
    }  # fmt: skip
    return replace(n, sizes=own)


def numbers_of_mamba(config: Table, n: Numbers) -> Numbers:
    """How many numbers a column remembers, and of how many the size of a step is made."""
    auto = config.values.get("time_step_rank") == "auto"
    rank = -(-n.n_embd // 16) if auto else config.count("time_step_rank", MOST)
    size = config.count("mamba_d_state", MOST, 16)
    own = {
        "n_values": n.n_ff, "n_convolved": n.n_ff, "n_in": 2 * n.n_ff, "n_key": size, "rank": rank,
        "n_x": rank + 2 * size, "width": config.count("mamba_d_conv", MOST, 4),
    }  # fmt: skip
    return replace(n, sizes=own)


def scans(config: Table, n: Numbers, *, normed: bool = False) -> Fields:  # noqa: ARG001
    """The shape of states, and whether what is learnt and asked is `normed`."""
    shape = {"conv_kernel": "width", "state_size": "n_key", "time_step_rank": "rank", "inner_size": "n_values"}
    found = {f"ssm.{key}": Field.uint32(n.sizes[name]) for key, name in shape.items()}
    return found | {"ssm.dt_b_c_rms": Field.flag(normed)}


def scans_of_normed(config: Table, n: Numbers) -> Fields:
    return scans(config, n, normed=True)


def numbers_of_falcon_h1(config: Table, n: Numbers) -> Numbers:
    """What it multiplies vectors with on their way, as factors of the matrices that make these or take them."""
    n = numbers_of_mamba2(config, n)
    embedding, output, attention, attended, key, recurrent, remembered = (
        config.positive(f"{name}_multiplier", 1.0)
        for name in ("embedding", "lm_head", "attention_in", "attention_out", "key", "ssm_in", "ssm_out")
    )
    gate, down = multipliers(config, "mlp_multipliers", 2)
    if n.tied and embedding != output:
        what = f"is true, but the embedding is multiplied with {embedding:g} and the output layer with {output:g}"
        raise config.error("tie_word_embeddings", what, Unsupported)
    groups = n.sizes["n_groups"] * n.sizes["n_key"]
    rows = [n.sizes["n_values"], n.sizes["n_values"], groups, groups, n.sizes["n_heads"]]
    of_rows = np.repeat(np.array(multipliers(config, "ssm_multipliers", len(rows))), rows)[:, None]
    factors = {
        "token_embd": embedding, "output": output, "attn_q": attention, "attn_k": attention * key, "attn_v": attention,
        "attn_output": attended, "ssm_in": recurrent * of_rows, "ssm_out": remembered, "ffn_gate": gate,
        "ffn_down": down,
    }  # fmt: skip
    return replace(n, factors={kind: np.asarray(factor, np.float32) for kind, factor in factors.items()})


def multipliers(config: Table, key: str, count: int) -> list[float]:
    """So many numbers; all 1, where none are given."""
    given = config.get(key, list, [1.0] * count)
    if len(given) != count or not all(type(each) in (int, float) and 0 < each < 1e30 for each in given):
        raise config.error(key, f"must be {count} numbers above 0")
    return given


def numbers_of_rwkv(config: Table, n: Numbers) -> Numbers:
    """The ranks of its narrow places, and its heads, which make up the embedding."""
    if n.n_embd % n.head_dim:
        raise config.error("head_dim", f"is {n.head_dim}; it must divide {n.n_embd}")
    names = {"decay_rank": "decay", "rate_rank": "a", "value_rank": "v", "gate_rank": "gate"}
    ranks = {rank: config.count(f"{name}_low_rank_dim", n.n_embd) for rank, name in names.items()}
    return replace(n, sizes={**ranks, "n_heads": n.n_embd // n.head_dim, "n_lerps": 6})


def narrow_places(config: Table, n: Numbers) -> Fields:  # noqa: ARG001
    """A state remembers as long as there is text: the length of the context says no more than that."""
    keys = {"decay": "decay_rank", "iclr": "rate_rank", "value_residual_mix": "value_rank", "gate": "gate_rank"}
    return {
        **ENDLESS,
        "feed_forward_length": Field.uint32(n.n_ff),
        "wkv.head_size": Field.uint32(n.head_dim),
        **{f"attention.{key}_lora_rank": Field.uint32(n.sizes[rank]) for key, rank in keys.items()},
    }


def delta_net_with_experts(config: Table, n: Numbers) -> Fields:
    """Both at once."""
    return delta_net(config, n) | experts(config, n)


def next_delta_net(config: Table, n: Numbers) -> Fields:
    """Without positions in pictures."""
    fields = delta_net_with_experts(config, n)
    return {key: field for key, field in fields.items() if key != "rope.dimension_sections"}


def states(config: Table, n: Numbers) -> Fields:  # noqa: ARG001
    """The shape of recurrent heads."""
    shape = {
        "conv_kernel": "width", "state_size": "n_key", "group_count": "n_groups", "time_step_rank": "n_heads",
        "inner_size": "n_values",
    }  # fmt: skip
    return {f"ssm.{key}": Field.uint32(n.sizes[name]) for key, name in shape.items()}


def granite_hybrid(config: Table, n: Numbers) -> Fields:
    """Blocks that are recurrent have no heads of keys; as a rule, nothing tells distances in the others."""
    turns = config.get("position_embedding_type", str, "nope") == "rope"
    heads = np.array([n.n_head_kv if kind == "full_attention" else 0 for kind in n.kinds], np.int32)
    found = states(config, n) | ({} if turns else ENDLESS) | {
        "attention.head_count_kv": Field.numbers(heads),
        "rope.scaling.finetuned": Field.flag(turns),
        "expert_shared_feed_forward_length": Field.uint32(config.count("shared_expert_intermediate_size", MOST)),
    }
    return found | (experts(config, n) if n.n_expert else {})


def granite_of_hybrids(config: Table, n: Numbers) -> Fields:  # noqa: ARG001
    """That its heads turn."""
    if config.get("position_embedding_type", str, "rope") != "rope":
        raise config.error("position_embedding_type", "must be rope where no layer is recurrent", Unsupported)
    return {"rope.scaling.finetuned": Field.flag(True)}


def nemotron_h(config: Table, n: Numbers) -> Fields:
    """A block is of one kind: it has heads of keys where that is attention, and the width of a network where it is that
    of one."""
    kinds = {"attention.head_count_kv": ("full_attention", n.n_head_kv), "feed_forward_length": ("mlp", n.n_ff)}
    if n.n_expert:
        kinds["feed_forward_length"] = "moe", n.n_ff_expert
    found = {
        key: Field.numbers(np.array([number if kind == of else 0 for of in n.kinds], np.int32))
        for key, (kind, number) in kinds.items()
    }
    return states(config, n) | found | ENDLESS


def nemotron_h_with_experts(config: Table, n: Numbers) -> Fields:
    shared = {"expert_shared_feed_forward_length": Field.uint32(n.n_ff_shared)}
    return nemotron_h(config, n) | experts(config, n) | shared


def numbers_of_latent_experts(config: Table, n: Numbers) -> Numbers:
    """How long the vectors are that experts look at."""
    n = numbers_of_mamba2(config, n)
    latent = config.count("moe_latent_size", LARGEST["embedding_length"])
    return replace(n, sizes={**n.sizes, "n_latent": latent})


def nemotron_h_with_latent_experts(config: Table, n: Numbers) -> Fields:
    return nemotron_h_with_experts(config, n) | {"moe_latent_size": Field.uint32(n.sizes["n_latent"])}


def delta_net(config: Table, n: Numbers) -> Fields:
    """Which blocks are recurrent, and the shape of their states."""
    usual = config.table("rope_scaling").get("mrope_section", list, [11, 11, 10])  # older files' word
    sections = config.table("rope_parameters").get("mrope_section", list, usual)
    return {
        **states(config, n),
        "full_attention_interval": Field.uint32(config.count("full_attention_interval", MOST, 4)),
        "attention.recurrent_layers": Field.flags([kind != "full_attention" for kind in n.kinds]),
        "rope.dimension_sections": Field.numbers(np.array([*sections, 0, 0, 0, 0][:4], np.int32)),
    }


def numbers_of_gemma3n(config: Table, n: Numbers) -> Numbers:
    """Residual streams, the rank of LAuReL, and the tokens that layers are told something of."""
    count = config.count("altup_num_inputs", 16)
    if count < 2:
        raise config.error("altup_num_inputs", f"is {count}; there must be 2 at least")
    own = {
        "n_streams": count, "n_others": count - 1, "n_streams_squared": count**2,
        "rank": config.count("laurel_rank", MOST),
        "n_vocab_input": config.count("vocab_size_per_layer_input", n.n_vocab),
    }  # fmt: skip
    return replace(n, sizes=own)


def streams_and_sparsity(config: Table, n: Numbers) -> Fields:
    """And how far above its mean a gate must be to count, so that as many do as the share that config.json gives."""
    shares = config.get("activation_sparsity_pattern", list)
    if len(shares) != n.n_layer or not all(type(share) in (int, float) and 0 <= share < 1 for share in shares):
        raise config.error("activation_sparsity_pattern", f"must be {n.n_layer} numbers, from 0 on and below 1")
    least = [NormalDist().inv_cdf(share) if share else -np.inf for share in shares]
    return {
        "altup.active_idx": Field.uint32(0),
        "altup.num_inputs": Field.uint32(n.sizes["n_streams"]),
        "activation_sparsity_scale": Field.numbers(np.array(least, np.float32)),
        "attention.shared_kv_layers": Field.uint32(shared_layers(config, n)),
        "embedding_length_per_layer_input": Field.uint32(n.n_input),
        "feed_forward_length": Field.numbers(np.full(n.n_layer, n.n_ff, np.int32)),
    }


def shared_layers(config: Table, n: Numbers) -> int:
    """How many of the last layers have no keys and values of their own."""
    count = config.get("num_kv_shared_layers", int, 0)
    if not 0 <= count < n.n_layer:
        raise config.error("num_kv_shared_layers", f"is {count}; it must be 0 to {n.n_layer - 1}")
    return count


def experts(config: Table, n: Numbers) -> Fields:
    """How many there are, how many of them see a token, and how wide they are if that is another number."""
    found = {
        "expert_count": Field.uint32(n.n_expert),
        "expert_used_count": Field.uint32(config.count("num_experts_per_tok", n.n_expert)),
    }
    if "moe_intermediate_size" in config.values:
        found["expert_feed_forward_length"] = Field.uint32(n.n_ff_expert)
    return found
