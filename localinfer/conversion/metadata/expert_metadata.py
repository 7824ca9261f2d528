"""Metadata of mixture-of-experts layers, computed from config.json. `architecture_metadata` explains the functions."""

from dataclasses import replace

import numpy as np

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM

Fields = dict[str, Field]
NOMIC_CONTEXT = 512  # tokens


def experts(config: JsonObject, hp: HParams, *, usually_normed: bool | None = None) -> Fields:
    """Return the number of experts, the number used per token, and their feed-forward length if it differs.

    If the weights of experts may be normalized or not, `usually_normed` is what readers of the architecture assume.
    """
    fields = {
        "expert_count": Field.uint32(hp.n_expert),
        "expert_used_count": Field.uint32(config.positive_int("num_experts_per_tok", hp.n_expert)),
    }
    if "moe_intermediate_size" in config.values:
        fields["expert_feed_forward_length"] = Field.uint32(hp.n_ff_expert)
    if usually_normed is not None and config.get("norm_topk_prob", bool, False) != usually_normed:
        fields["expert_weights_norm"] = Field.flag(not usually_normed)
    return fields


def has_dense_layers(config: JsonObject) -> bool:
    """Return whether some layers of a Qwen MoE model have no experts."""
    return bool(config.get("mlp_only_layers", list, [])) or config.get("decoder_sparse_step", int, 1) != 1


def dense_layers_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set which layers of a Qwen MoE model have no experts: those that are listed, and all but every n-th."""
    listed = config.get("mlp_only_layers", list, [])
    if not all(type(each) is int for each in listed):
        raise config.error("mlp_only_layers", "must be numbers of layers")
    step = config.positive_int("decoder_sparse_step", DEFAULT_MAXIMUM, 1)
    hp = replace(hp, moe_interleave=step, mlp_only_layers=frozenset(listed))
    if not any(hp.has_experts(layer) for layer in range(hp.n_layer)):
        raise config.error("mlp_only_layers", "leave no layer with experts", UnsupportedError)
    return hp


def sigmoid_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return the metadata of experts with sigmoid gating (2 in GGUF)."""
    return experts(config, hp) | {"expert_gating_func": Field.uint32(2)}


def glm_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return GLM's expert metadata; the number of MTP layers is always written."""
    return sigmoid_experts(config, hp) | {"nextn_predict_layers": Field.uint32(hp.n_mtp_layers)}


def bailing_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return Bailing's expert metadata, with the feed-forward length of the shared experts."""
    return glm_experts(config, hp) | {"expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared)}


def softmax_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return the expert metadata of models with shared experts that do not scale the experts' weights."""
    return experts(config, hp) | {"expert_weights_scale": Field.float32(1.0)}


def deepseek_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return the expert metadata of DeepSeek's first generation, with softmax gating (1 in GGUF); RoPE has no
    scaling."""
    more = {"expert_gating_func": Field.uint32(1), "rope.scaling.type": Field.text("none")}
    return softmax_experts(config, hp) | more


def exaone_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return EXAONE's expert metadata, as Bailing's; RoPE has no scaling."""
    return bailing_experts(config, hp) | {"rope.scaling.type": Field.text("none")}


def maple_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return Maple's expert metadata, with the limit of gates that its code has."""
    return experts(config, hp) | {"swiglu_clamp_exp": Field.numbers(np.full(hp.n_layer, 7.0, np.float32))}


def smallthinker_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return SmallThinker's expert metadata, with softmax or sigmoid gating (1 or 2 in GGUF)."""
    gating = 1 if config.get("moe_primary_router_apply_softmax", bool, False) else 2
    return experts(config, hp) | {"expert_gating_func": Field.uint32(gating)}


def dense_first_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set the number of first layers without experts from a list of kinds, if config.json has one. Raises
    UnsupportedError if later layers are dense, too."""
    kinds = config.get("mlp_layer_types", list, [])
    if not kinds:
        return hp
    dense = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    if kinds != ["dense"] * dense + ["sparse"] * (hp.n_layer - dense) or dense == hp.n_layer:
        what = f"other than dense and then sparse, {hp.n_layer} in all, is not supported"
        raise config.error("mlp_layer_types", what, UnsupportedError)
    return replace(hp, n_dense_layers=dense)


def nomic_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set that every other layer of Nomic Embed v2 has experts, and the length of texts that it was trained with, which
    config.json does not state."""
    n_ctx = min(hp.n_ctx, NOMIC_CONTEXT)
    return replace(hp, moe_interleave=config.positive_int("moe_every_n_layers", DEFAULT_MAXIMUM), n_ctx=n_ctx)


def nomic_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return Nomic's expert metadata, with the distance of layers with experts."""
    return experts(config, hp) | {"moe_every_n_layers": Field.uint32(hp.moe_interleave)}


def hy_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return Hunyuan 3's expert metadata, with the feed-forward length of the shared experts."""
    return sigmoid_experts(config, hp) | {"expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared)}


def cohere_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return the expert metadata of Cohere 2. With softmax gating, weights are the softmax of the chosen logits."""
    gating = {"softmax": 1, "sigmoid": 2}.get(config.get("expert_selection_fn", str))
    if not gating:
        raise config.error("expert_selection_fn", "must be softmax or sigmoid", UnsupportedError)
    fields = {
        "leading_dense_block_count": Field.uint32(hp.n_dense_layers),
        "expert_gating_func": Field.uint32(gating),
        "expert_weights_norm": Field.flag(gating == 1 or config.get("norm_topk_prob", bool)),
        "rope.scaling.type": Field.text("none"),
    }
    if hp.n_ff_shared:
        fields["expert_shared_count"] = Field.uint32(hp.n_ff_shared // hp.n_ff_expert)
        fields["expert_shared_feed_forward_length"] = Field.uint32(hp.n_ff_shared)
    return experts(config, hp) | fields


def granite_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return Granite's expert metadata; some models have no shared expert."""
    shared = {"expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared)}
    return experts(config, hp) | (shared if config.values.get("shared_expert_intermediate_size") else {})


def ernie_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set which of Ernie's layers have experts: every n-th one of a range, whose end is -1 for the last layer."""
    end = config.get("moe_layer_end_index", int, -1)
    if not -1 <= end < hp.n_layer:
        raise config.error("moe_layer_end_index", f"is {end}; it must be -1 to {hp.n_layer - 1}")
    step = config.positive_int("moe_layer_interval", DEFAULT_MAXIMUM, 1)
    after = range(hp.n_layer if end == -1 else end + 1, hp.n_layer)
    hp = replace(hp, moe_interleave=step, mlp_only_layers=frozenset(after))
    if not any(hp.has_experts(layer) for layer in range(hp.n_layer)):
        raise config.error("moe_layer_interval", "leaves no layer with experts", UnsupportedError)
    return hp


def ernie_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return Ernie's expert metadata. llama.cpp does not know dense layers after layers with experts."""
    more = {
        "interleave_moe_layer_step": Field.uint32(hp.moe_interleave),
        "expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared),
    }
    return experts(config, hp) | more


def hunyuan_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set the shared experts' feed-forward length, a multiple of the dense one."""
    return replace(hp, n_ff_shared=hp.n_ff * config.positive_int("n_shared_experts", DEFAULT_MAXIMUM, 1))


def hunyuan_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return Hunyuan's expert metadata, with the number of shared experts."""
    shared = config.positive_int("n_shared_experts", DEFAULT_MAXIMUM, 1)
    return experts(config, hp) | {
        "expert_shared_count": Field.uint32(shared),
        "expert_shared_feed_forward_length": Field.uint32(hp.n_ff_shared),
    }
