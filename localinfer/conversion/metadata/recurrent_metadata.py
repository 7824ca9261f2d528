"""Metadata of recurrent layers, computed from config.json. `architecture_metadata` explains the functions.

They are state space models (Mamba), gated delta nets, RWKV and short convolutions, and hybrids of them with attention.
"""

from dataclasses import replace
from math import inf

import numpy as np

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.metadata.attention_metadata import mla, mla_hparams
from localinfer.conversion.metadata.expert_metadata import dense_first_hparams, experts, sigmoid_experts
from localinfer.conversion.rope import mrope_sections
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM, MAXIMA
from localinfer.graph.properties.recurrence import MAX_DECAY_BOUND
from localinfer.graph.properties.rope import SECTIONS_KEY

Fields = dict[str, Field]
LARGEST_FLOAT = float(np.finfo(np.float32).max)
UNLIMITED_CONTEXT = {"context_length": Field.uint32(1 << 20)}  # without positions, any context length works


def ssm_shape(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the shape of recurrent heads."""
    shape = {
        "conv_kernel": "width", "state_size": "n_key", "group_count": "n_groups", "time_step_rank": "n_heads",
        "inner_size": "n_values",
    }  # fmt: skip
    return {f"ssm.{key}": Field.uint32(hp.sizes[name]) for key, name in shape.items()}


def mamba_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of a Mamba layer, whose inner length is the feed-forward length."""
    return selective_scan_hparams(config, hp, hp.n_ff)


def selective_scan_hparams(config: JsonObject, hp: HParams, n_inner: int) -> HParams:
    """Add the sizes of layers with a selective scan of `n_inner` channels: the state size per channel, and the rank of
    the time step projection.
    """
    auto = config.values.get("time_step_rank") == "auto"
    rank = -(-hp.n_embd // 16) if auto else config.positive_int("time_step_rank", DEFAULT_MAXIMUM)
    size = config.positive_int("mamba_d_state", DEFAULT_MAXIMUM, 16)
    sizes = {
        "n_values": n_inner, "n_convolved": n_inner, "n_in": 2 * n_inner, "n_key": size, "rank": rank,
        "n_x": rank + 2 * size, "width": config.positive_int("mamba_d_conv", DEFAULT_MAXIMUM, 4),
    }  # fmt: skip
    return replace(hp, sizes=sizes)


def selective_scan_shape(hp: HParams) -> Fields:
    """Return the shape of the recurrent states of a selective scan."""
    shape = {"conv_kernel": "width", "state_size": "n_key", "time_step_rank": "rank", "inner_size": "n_values"}
    return {f"ssm.{key}": Field.uint32(hp.sizes[name]) for key, name in shape.items()}


def mamba(config: JsonObject, hp: HParams, *, normed: bool = False) -> Fields:  # noqa: ARG001
    """Return the shape of the recurrent states, and whether dt, B and C are normalized (`normed`)."""
    return selective_scan_shape(hp) | {"ssm.dt_b_c_rms": Field.flag(normed)}


def mamba_with_norms(config: JsonObject, hp: HParams) -> Fields:
    """Return Mamba's metadata for a model that normalizes dt, B and C."""
    return mamba(config, hp, normed=True)


def mamba2_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the number of recurrent heads and the lengths of their keys and values (Mamba-2)."""
    require_unlimited_time_steps(config)
    names = ("n_heads", "d_head", "d_state", "n_groups")
    heads, value, key, groups = (config.positive_int(f"mamba_{name}", DEFAULT_MAXIMUM) for name in names)
    convolved = heads * value + 2 * groups * key
    if heads % groups:
        raise config.error("mamba_n_groups", f"is {groups}; it must divide {heads}")
    sizes = {
        "n_heads": heads, "n_groups": groups, "n_key": key, "n_value": value, "n_values": heads * value,
        "n_convolved": convolved, "n_in": heads * value + convolved + heads, "n_of_group": heads // groups * value,
        "width": config.positive_int("mamba_d_conv", DEFAULT_MAXIMUM, 4),
    }  # fmt: skip
    return replace(hp, sizes=sizes)


def require_unlimited_time_steps(config: JsonObject) -> None:
    """Raise UnsupportedError for limits of time steps that have an effect: GGUF has no key for them."""
    limits = config.get("time_step_limit", list, [0.0, inf])
    if len(limits) != 2 or not all(type(each) in (int, float) for each in limits):
        raise config.error("time_step_limit", "must be two numbers")
    if limits[0] > 0 or limits[1] < LARGEST_FLOAT:
        what = f"{printable(repr(limits), 60)} is not supported: GGUF has no key for limits of time steps"
        raise config.error("time_step_limit", what, UnsupportedError)


def falcon_h1_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add Falcon-H1's activation multipliers as factors of the matrices that produce or consume the activations."""
    hp = mamba2_hparams(config, hp)
    embedding, output, attention, attention_output, key, recurrent, recurrent_output = (
        config.positive_float(f"{name}_multiplier", 1.0)
        for name in ("embedding", "lm_head", "attention_in", "attention_out", "key", "ssm_in", "ssm_out")
    )
    gate, down = read_multipliers(config, "mlp_multipliers", 2)
    groups = hp.sizes["n_groups"] * hp.sizes["n_key"]
    rows = [hp.sizes["n_values"], hp.sizes["n_values"], groups, groups, hp.sizes["n_heads"]]
    of_rows = np.repeat(np.array(read_multipliers(config, "ssm_multipliers", len(rows))), rows)[:, None]
    factors = {
        "token_embd": embedding, "output": output, "attn_q": attention, "attn_k": attention * key, "attn_v": attention,
        "attn_output": attention_output, "ssm_in": recurrent * of_rows, "ssm_out": recurrent_output, "ffn_gate": gate,
        "ffn_down": down,
    }  # fmt: skip
    weight_factors = {kind: np.asarray(factor, np.float32) for kind, factor in factors.items()}
    # With other factors, the output layer is a matrix of its own, also where config.json says that it is shared.
    return replace(hp, tied_embeddings=hp.tied_embeddings and embedding == output, weight_factors=weight_factors)


def read_multipliers(config: JsonObject, key: str, count: int) -> list[float]:
    """Return `count` positive numbers from a list; all 1 if the key is missing."""
    given = config.get(key, list, [1.0] * count)
    if len(given) != count or not all(type(each) in (int, float) and 0 < each < 1e30 for each in given):
        raise config.error(key, f"must be {count} numbers above 0")
    return given


def granite_hybrid(config: JsonObject, hp: HParams) -> Fields:
    """Return Granite 4's hybrid metadata. Recurrent layers have no KV heads; attention layers usually have no rope."""
    uses_rope = config.get("position_embedding_type", str, "nope") == "rope"
    heads = np.array([hp.n_head_kv if kind == "full_attention" else 0 for kind in hp.layer_types], np.int32)
    key = "shared_expert_intermediate_size"
    n_ff_shared = hp.n_ff_shared if hp.n_expert else config.positive_int(key, DEFAULT_MAXIMUM)
    fields = (
        ssm_shape(config, hp)
        | ({} if uses_rope else UNLIMITED_CONTEXT)
        | {
            "attention.head_count_kv": Field.numbers(heads),
            "rope.scaling.finetuned": Field.flag(uses_rope),
            "expert_shared_feed_forward_length": Field.uint32(n_ff_shared),
        }
    )
    return fields | (experts(config, hp) if hp.n_expert else {})


def granite_without_states(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the metadata of a model with rope, which is required without recurrent layers."""
    if config.get("position_embedding_type", str, "rope") != "rope":
        raise config.error("position_embedding_type", "must be rope where no layer is recurrent", UnsupportedError)
    return {"rope.scaling.finetuned": Field.flag(True)}


def nemotron_h(config: JsonObject, hp: HParams) -> Fields:
    """Return Nemotron-H's metadata. Each layer has one type: KV heads are set for attention layers, and the
    feed-forward length for MLP layers and layers with experts.
    """
    kinds = {
        "attention.head_count_kv": {"full_attention": hp.n_head_kv},
        "feed_forward_length": {"mlp": hp.n_ff, "moe": hp.n_ff_expert},
    }
    fields = {
        key: Field.numbers(np.array([numbers.get(kind, 0) for kind in hp.layer_types], np.int32))
        for key, numbers in kinds.items()
    }
    return ssm_shape(config, hp) | fields | UNLIMITED_CONTEXT


def nemotron_h_moe(config: JsonObject, hp: HParams) -> Fields:
    """Return Nemotron-H's metadata with experts."""
    shared = {"expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared)}
    return nemotron_h(config, hp) | experts(config, hp) | shared


def latent_moe_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the length of the latent vectors that experts process."""
    hp = mamba2_hparams(config, hp)
    latent = config.positive_int("moe_latent_size", MAXIMA["embedding_length"])
    return replace(hp, sizes={**hp.sizes, "n_latent": latent})


def nemotron_h_latent_moe(config: JsonObject, hp: HParams) -> Fields:
    """Return Nemotron-H's metadata with experts that process latent vectors."""
    return nemotron_h_moe(config, hp) | {"moe_latent_size": Field.uint32(hp.sizes["n_latent"])}


def delta_net_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the number of recurrent heads and the lengths of their keys and values."""
    heads, groups, key, value = (
        config.positive_int(f"linear_{name}", DEFAULT_MAXIMUM)
        for name in ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim")
    )
    if heads % groups:
        raise config.error("linear_num_key_heads", f"is {groups}; it must divide {heads}")
    convolved = 2 * groups * key + heads * value
    sizes = {
        "n_heads": heads, "n_groups": groups, "n_key": key, "n_value": value, "n_values": heads * value,
        "n_convolved": convolved, "width": config.positive_int("linear_conv_kernel_dim", DEFAULT_MAXIMUM, 4),
        "n_2q": 2 * hp.n_q,
        "n_2heads": 2 * heads, "n_in": convolved + heads * value,
    }  # fmt: skip
    return replace(hp, sizes=sizes)


def delta_net(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of recurrent layers: their indices and the shape of their states."""
    return {
        **ssm_shape(config, hp),
        "full_attention_interval": Field.uint32(config.positive_int("full_attention_interval", DEFAULT_MAXIMUM, 4)),
        "attention.recurrent_layers": Field.flags([kind != "full_attention" for kind in hp.layer_types]),
        SECTIONS_KEY: mrope_sections(config, (11, 11, 10)),
    }


def delta_net_moe(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of gated delta net layers and of experts."""
    return delta_net(config, hp) | experts(config, hp)


def qwen3next(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata without multimodal rope sections."""
    fields = delta_net_moe(config, hp)
    return {key: field for key, field in fields.items() if key != SECTIONS_KEY}


def kda_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the head size of Kimi Delta Attention, and the sizes of latent attention in the other layers. Raises
    UnsupportedError unless both have the same number of heads."""
    if config.get("linear_num_heads", int, hp.n_head) != hp.n_head:
        raise config.error("linear_num_heads", f"other than {hp.n_head} is not supported", UnsupportedError)
    size, width = (config.positive_int(f"linear_{name}", DEFAULT_MAXIMUM) for name in ("head_dim", "conv_kernel_dim"))
    latent = mla_hparams(config, hp)
    sizes = {key: number for key, number in latent.sizes.items() if key not in ("n_q", "n_values")}
    kda = {"n_key": size, "n_keys": hp.n_head * size, "width": width, "n_heads": hp.n_head}
    return dense_first_hparams(config, replace(latent, sizes={**sizes, **kda}))


def kda_layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:  # noqa: ARG001
    """Return the sizes of heads in layers with Kimi Delta Attention and in those with latent attention."""
    size, key = hp.sizes["n_key"], hp.sizes["n_qk_nope"] + hp.sizes["n_qk_rope"]
    linear = LayerOverrides({"head_dim": size, "head_dim_value": size, "n_head_kv": hp.n_head})
    full = LayerOverrides({"head_dim": key, "head_dim_value": hp.sizes["n_value"]})
    return tuple(full if kind == "full_attention" else linear for kind in hp.layer_types)


def kda_metadata(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of Kimi Delta Attention, of latent attention and of experts."""
    heads = np.array([int(kind == "full_attention") for kind in hp.layer_types], np.int32)
    return mla(config, hp) | {
        "attention.head_count_kv": Field.numbers(heads),
        "attention.value_length": Field.uint32(hp.head_dim),  # as llama.cpp writes it, which does not read it
        "rope.dimension_count": Field.uint32(hp.sizes["n_qk_rope"]),
        "ssm.conv_kernel": Field.uint32(hp.sizes["width"]),
        "kda.head_dim": Field.uint32(hp.sizes["n_key"]),
        "leading_dense_block_count": Field.uint32(hp.n_dense_layers),
        "expert_shared_count": Field.uint32(hp.n_ff_shared // hp.n_ff_expert),
    }


def bounded_kda_metadata(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of Kimi Delta Attention with a limit of the logarithms of decays."""
    return kda_metadata(config, hp) | {
        "kda.safe_gate": Field.flag(True),
        "kda.gate_lower_bound": read_decay_bound(config, "kda_lower_bound"),
        "expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared),
    }


def read_decay_bound(config: JsonObject, key: str) -> Field:
    """Return the limit of the logarithms of decays. Raises LocalInferError if there is none, or it is no such limit."""
    bound = config.get(key, float)
    if not -MAX_DECAY_BOUND <= bound < 0:
        raise config.error(key, f"is {bound:g}; it must be below 0, and at least -{MAX_DECAY_BOUND}")
    return Field.float32(bound)


def lfm2_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the convolution width and the feed-forward length, given or computed."""
    n_ff = hp.n_ff
    if config.get("block_auto_adjust_ff_dim", bool, True):
        multiple = config.positive_int("block_multiple_of", DEFAULT_MAXIMUM, 256)
        n_ff = int(config.positive_float("block_ffn_dim_multiplier", 1.0) * int(2 * n_ff / 3))
        n_ff = -(-n_ff // multiple) * multiple
    sizes = {"n_3embd": 3 * hp.n_embd, "width": config.positive_int("conv_L_cache", DEFAULT_MAXIMUM, 3)}
    return replace(hp, n_ff=n_ff, sizes=sizes)


def short_convolutions(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the convolution width; convolution layers have no KV heads."""
    heads = np.array([hp.n_head_kv if kind == "full_attention" else 0 for kind in hp.layer_types], np.int32)
    return {"shortconv.l_cache": Field.uint32(hp.sizes["width"]), "attention.head_count_kv": Field.numbers(heads)}


def lfm2_moe_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Use the given feed-forward length for layers without experts."""
    return replace(lfm2_hparams(config, hp), n_ff=hp.n_ff)


def short_convolutions_moe(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of short convolutions and of experts with sigmoid gating."""
    return short_convolutions(config, hp) | sigmoid_experts(config, hp)


def wkv_heads(config: JsonObject, hp: HParams) -> int:
    """Return the number of heads of RWKV, which together make up the embedding."""
    if hp.n_embd % hp.head_dim:
        raise config.error("head_dim", f"is {hp.head_dim}; it must divide {hp.n_embd}")
    return hp.n_embd // hp.head_dim


def rwkv_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the low ranks and the number of heads of RWKV-7."""
    heads = wkv_heads(config, hp)
    names = {"decay_rank": "decay", "rate_rank": "a", "value_rank": "v", "gate_rank": "gate"}
    ranks = {rank: config.positive_int(f"{name}_low_rank_dim", hp.n_embd) for rank, name in names.items()}
    return replace(hp, sizes={**ranks, "n_heads": heads, "n_lerps": 6})


def rwkv_metadata(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return RWKV-7's metadata. The context length is nominal: a recurrent state has no limit."""
    keys = {"decay": "decay_rank", "iclr": "rate_rank", "value_residual_mix": "value_rank", "gate": "gate_rank"}
    return {
        **UNLIMITED_CONTEXT,
        "feed_forward_length": Field.uint32(hp.n_ff),
        "wkv.head_size": Field.uint32(hp.head_dim),
        **{f"attention.{key}_lora_rank": Field.uint32(hp.sizes[rank]) for key, rank in keys.items()},
    }
