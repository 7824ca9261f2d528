"""Metadata of single architectures that must be computed or checked from config.json -> GGUF's keys.

Each function takes config.json and the model's hyperparameters. `*_hparams` functions return the hyperparameters
with additions; the others return fields by keys without the architecture's prefix. expert_metadata.py,
attention_metadata.py and recurrent_metadata.py have the functions for these kinds of layers.
"""

from dataclasses import replace
from statistics import NormalDist

import numpy as np

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata.attention_metadata import expanded_mla, original_context, shared_kv_layers
from localinfer.conversion.metadata.expert_metadata import experts
from localinfer.errors import UnsupportedError
from localinfer.gguf.pooling import POOLINGS
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM, MAXIMA
from localinfer.kernels.layout import MAX_BIAS_DISTANCE

Fields = dict[str, Field]
BAICHUAN2_VOCABULARY = 125_696
MINICPM3_SCALES = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}


def minicpm_scales(config: JsonObject, hp: HParams) -> Fields:
    """Return MiniCPM's scales: branches scaled by depth, logits by the width relative to the tuned base model."""
    return {
        "embedding_scale": Field.float32(config.positive_float("scale_emb")),
        "residual_scale": Field.float32(config.positive_float("scale_depth") / hp.n_layer**0.5),
        "logit_scale": Field.float32(hp.n_embd / config.positive_float("dim_model_base")),
    }


def minicpm3(config: JsonObject, hp: HParams) -> Fields:
    """Return MiniCPM3's metadata: latent attention, and those of MiniCPM's scales that readers do not assume."""
    usual = minicpm_scales(replace(config, values={**config.values, **MINICPM3_SCALES}), hp)
    scales = {key: field for key, field in minicpm_scales(config, hp).items() if field != usual[key]}
    return expanded_mla(config, hp) | scales


def t5_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the number of relative position buckets, and the number of decoder layers: that of the encoder by default.

    Logits of the embedding are scaled by readers. Where they must not be, the output layer is a matrix of its own.
    """
    buckets = config.positive_int("relative_attention_num_buckets", MAX_BIAS_DISTANCE)
    decoder = config.positive_int("num_decoder_layers", MAXIMA["block_count"], hp.n_layer)
    is_scaled = config.get("scale_decoder_outputs", bool, hp.tied_embeddings)
    return replace(
        hp, n_decoder_layers=decoder, tied_embeddings=is_scaled, sizes={**hp.sizes, "n_buckets": buckets}
    )


def t5(config: JsonObject, hp: HParams) -> Fields:
    """Return T5's metadata: that of its encoder, and what distinguishes the decoder."""
    start = Field.uint32(config.get("decoder_start_token_id", int))
    return t5_encoder(config, hp) | {
        "decoder_block_count": Field.uint32(hp.n_decoder_layers), "decoder_start_token_id": start,
    }  # fmt: skip


def t5_encoder(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the metadata of T5's encoder. As in llama.cpp's files, the epsilon has two keys."""
    return {
        "attention.layer_norm_epsilon": Field.float32(hp.eps),
        "attention.relative_buckets_count": Field.uint32(hp.size("n_buckets")),
    }


def refact_hparams(config: JsonObject, hp: HParams) -> HParams:  # noqa: ARG001
    """Set Refact's feed-forward length: two thirds of four times the embedding length, in steps of 256."""
    return replace(hp, n_ff=-(-(8 * hp.n_embd // 3) // 256) * 256)


def baichuan_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Raise UnsupportedError for Baichuan 2, which normalizes its output layer."""
    if hp.n_vocab == BAICHUAN2_VOCABULARY:
        raise config.error("vocab_size", "is that of Baichuan 2, whose output layer is not supported", UnsupportedError)
    return hp


def jais_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set the factors of Jais's embedding and output layer, which are folded into them. Raises UnsupportedError if
    scores are divided by the square root of the length of a head."""
    prefix = "mup_" if "mup_embeddings_scale" in config.values else ""
    if not config.get(f"{prefix}scale_qk_dot_by_d", bool, False):
        raise config.error(f"{prefix}scale_qk_dot_by_d", "must be true", UnsupportedError)
    output = config.positive_float(f"{prefix}width_scale")
    if prefix:
        output *= config.positive_float("mup_output_alpha")
    factors = {"token_embd": config.positive_float(f"{prefix}embeddings_scale"), "output": output}
    weight_factors = {kind: np.asarray(factor, np.float32) for kind, factor in factors.items()}
    return replace(hp, tied_embeddings=False, weight_factors=weight_factors)


def jais_alibi(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return how much scores decrease with the distance."""
    return {"attention.max_alibi_bias": Field.float32(8.0)}


def qwen_hparams(config: JsonObject, hp: HParams) -> HParams:  # noqa: ARG001
    """Halve the feed-forward length of Qwen's first generation: config.json counts the rows of gate and up together."""
    return replace(hp, n_ff=hp.n_ff // 2)


def without_output_layer(config: JsonObject, hp: HParams) -> HParams:  # noqa: ARG001
    """Return the hyperparameters of a model whose hidden states are its output. A stored output layer is not used."""
    return replace(hp, tied_embeddings=True)


def qwen3_reranker_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Return the hyperparameters of a Qwen3 with one label, which GGUF has as the answer "yes", and "no" with the logit
    0: the probability of "yes" is the sigmoid of the label's logit. There is no output layer."""
    if hp.n_labels != 1:
        what = f"has {hp.n_labels} labels; only rerankers are supported, which have one"
        raise config.error("id2label", what, UnsupportedError)
    return replace(without_output_layer(config, hp), sizes={**hp.sizes, "n_answers": 2})


def qwen_metadata(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the feed-forward length of gate and up together."""
    return {"feed_forward_length": Field.uint32(2 * hp.n_ff)}


def no_softcapping(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return caps of 0 for those that config.json lacks: readers take a missing key for Gemma 2's usual caps."""
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    return {key: Field.float32(0.0) for key in keys if key not in config.values}


def activation(config: JsonObject, hp: HParams, *, usual: tuple[str, ...]) -> Fields:  # noqa: ARG001
    """Return the activation, unless it is the `usual` one, which readers assume."""
    name = config.get("hidden_act", str, usual[0])
    return {} if name in usual else {"hidden_activation": Field.text(name)}


def falcon_layout(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the tensor data layout "jploski": queries, keys and values are sorted by kind."""
    return {"tensor_data_layout": Field.text("jploski")}


def meta_layout(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the tensor data layout of models whose rows are in the order of Llama's first checkpoints."""
    return {"tensor_data_layout": Field.text("Meta AI original pth")}


def neo_bert_hparams(config: JsonObject, hp: HParams) -> HParams:  # noqa: ARG001
    """Set NeoBERT's feed-forward length: two thirds of that in config.json, in steps of 8."""
    return replace(hp, n_ff=-(-(2 * hp.n_ff // 3) // 8) * 8)


def neo_bert(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return NeoBERT's pooling, and that RoPE has no scaling."""
    return {"rope.scaling.type": Field.text("none"), "pooling_type": Field.uint32(POOLINGS.index("cls"))}


def modern_bert(config: JsonObject, hp: HParams) -> Fields:  # noqa: ARG001
    """Return the activation and the classifier's pooling, which differ between models."""
    pooling = config.get("classifier_pooling", str, "cls")
    if pooling not in ("cls", "mean"):
        raise config.error("classifier_pooling", "is neither cls nor mean", UnsupportedError)
    return {
        "hidden_activation": Field.text(config.get("hidden_act", str, "gelu")),
        "classifier.pooling_type": Field.uint32(POOLINGS.index(pooling)),
    }


def phi_experts(config: JsonObject, hp: HParams) -> Fields:
    """Return Phi-3.5-MoE's metadata: experts, and the original context length."""
    return experts(config, hp) | original_context(config, hp)


def gemma3n_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add Gemma 3n's residual streams (AltUp), the rank of LAuReL and the vocabulary of the per-layer embeddings."""
    count = config.positive_int("altup_num_inputs", 16)
    if count < 2:
        raise config.error("altup_num_inputs", f"is {count}; there must be 2 at least")
    sizes = {
        "n_streams": count, "n_others": count - 1, "n_streams_squared": count**2,
        "rank": config.positive_int("laurel_rank", DEFAULT_MAXIMUM),
        "n_vocab_input": config.positive_int("vocab_size_per_layer_input", hp.n_vocab),
    }  # fmt: skip
    return replace(hp, sizes=sizes)


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
