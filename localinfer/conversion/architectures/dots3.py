"""dots3 note, whose layers with a sliding window have latent attention of other sizes. Images and sounds are not
supported: their encoders are ignored."""

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from localinfer.conversion.architectures.deepseek import DEEPSEEK32, INDEXER, sparse_hparams, sparse_metadata
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.metadata.layer_overrides import numbers
from localinfer.conversion.tensor_formats.reorder import halve_pairs
from localinfer.conversion.tensor_formats.values import Values
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import MAXIMA

SHARED_SIZES = ("q_lora_rank", "qk_rope_head_dim")  # GGUF has one value for both kinds of layers
OWN_SIZES = ("num_attention_heads", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank")
THETA, THETA_SWA = 80_000_000.0, 50_000.0


def adapted_keys(config: JsonObject) -> dict[str, Any]:
    """Return the window, the rotary embedding of each kind of layers, and the width of all shared experts together."""
    bases = config.positive_float("rope_theta", THETA), config.positive_float("swa_rope_theta", THETA_SWA)
    full, local = ({"rope_theta": base} for base in bases)
    keys: dict[str, Any] = {
        "sliding_window": config.values.get("sliding_window_size"),
        "rope_parameters": {
            "full_attention": {**config.child("rope_scaling").values, **full},
            "sliding_attention": local,
        },
    }
    name, widest = "moe_shared_expert_intermediate_size", MAXIMA["feed_forward_length"]
    if name in config.values:
        shared = config.positive_int("n_shared_experts", widest, 1)
        keys["shared_expert_intermediate_size"] = config.positive_int(name, widest // shared) * shared
    return keys


def local_config(config: JsonObject) -> JsonObject:
    """Return the config of the layers with a sliding window."""
    names = {key: f"swa_{key}" for key in (*SHARED_SIZES, *OWN_SIZES)}
    values = {key: config.values.get(name) for key, name in names.items()}
    return replace(config, values={**config.values, **values}, aliases={**config.aliases, **names})


def local_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Return the hyperparameters of the layers with a sliding window."""
    config = local_config(config)
    heads = config.positive_int("num_attention_heads", MAXIMA["attention.head_count"])
    return sparse_hparams(config, replace(hp, n_head=heads))


def read_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of latent attention. Raises UnsupportedError if a size must not differ between layers but does."""
    for key in SHARED_SIZES:
        if config.get(f"swa_{key}", int) != config.get(key, int):
            raise config.error(f"swa_{key}", f"other than {key} is not supported", UnsupportedError)
    return sparse_hparams(config, hp)


def layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return the layer overrides: layers with a sliding window, also MTP layers, have other heads and no indexer. The
    scales of latent vectors are those of the norms before."""

    def overrides(of_kind: HParams, missing: frozenset[str]) -> LayerOverrides:
        ranks = {"attn_q_a_norm": "q_rank", "attn_kv_a_norm": "kv_rank"}
        factors = {norm: np.float32(sqrt(hp.n_embd / of_kind.sizes[rank])) for norm, rank in ranks.items()}
        values = {"n_head": of_kind.n_head, "sizes": of_kind.sizes, "weight_factors": factors}
        return LayerOverrides(values, missing)

    full, local = overrides(hp, frozenset()), overrides(local_hparams(config, hp), frozenset(INDEXER))
    return tuple(local if sliding else full for sliding in hp.is_sliding)


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of both kinds of layers, and which of them have an indexer. There are no flags of MTP
    layers."""
    local = local_hparams(config, hp)
    kind = sparse_metadata(local_config(config), local)
    names = ("kv_lora_rank", "key_length", "value_length", "key_length_mla", "value_length_mla")
    return sparse_metadata(config, hp) | {
        **{f"attention.{name}_swa": kind[f"attention.{name}"] for name in names},
        "attention.head_count": numbers([local.n_head if sliding else hp.n_head for sliding in hp.is_sliding]),
        "attention.sliding_window_pattern": Field.flags(hp.is_sliding[: hp.n_layer]),
        "attention.indexer.types": Field.flags([not sliding for sliding in hp.is_sliding[: hp.n_layer]]),
    }


def mtp_windows(config: JsonObject, count: int) -> list[bool]:  # noqa: ARG001 (one signature for all)
    """Return which MTP layers have a window: all of them."""
    return [True] * count


def halve_index_pairs(values: Values, hp: HParams) -> Values:
    """Return the rows of the indexer's queries or keys with the even ones of the rotated part of each head before the
    odd ones: the model rotates adjacent values, readers of GGUF halves."""
    return halve_pairs(values, len(values) // hp.sizes["index_size"], hp.sizes["n_qk_rope"])


DOTS3NOTE = replace(
    DEEPSEEK32,
    name="dots3note",
    layer_tensors=(*DEEPSEEK32.layer_tensors, "attn_k_norm", "attn_gate"),
    shapes={**DEEPSEEK32.shapes, "attn_k_norm": ("n_qk_rope",), "attn_gate": ("n_head", "n_embd")},
    reorder={
        **DEEPSEEK32.reorder,
        **dict.fromkeys(
            ("indexer.attn_q_b", "indexer.attn_k", "indexer.k_norm", "indexer.k_norm.bias"), halve_index_pairs
        ),
    },
    tensor_names={
        **DEEPSEEK32.tensor_names,
        "self_attn.k_rope_only_layernorm": "attn_k_norm",
        "self_attn.g_proj": "attn_gate",
    },
    ignored_tensors=r"(vision_encoder|audio_encoder)\..*",
    end_of_turn="<|endofassistant|>",
    window_period=0,
    has_window_rope=True,
    writes_window_flags=True,
    mtp_windows=mtp_windows,
    adapted_keys=adapted_keys,
    read_hparams=read_hparams,
    metadata=metadata,
    layer_overrides=layers,
    required_values={
        **DEEPSEEK32.required_values, "use_dsa": True, "use_sliding_window": True, "k_rope_only_layernorm": True,
        "apply_mla_qkv_lora_rescale": True, "normalization": "RMSNorm", "final_norm": "RMSNorm",
        "attention_gate_type": "headwise", "swa_attention_gate_type": "headwise", "use_dynamic_rsf": False,
        "moe_gating_fp32": False, "attention_bias": False, "mlp_bias": False,
    },
    defaults={**DEEPSEEK32.defaults, "norm_topk_prob": True, "rms_norm_eps": 1e-5},
)  # fmt: skip
BY_CLASS = dict.fromkeys(
    ("Dots3NoteForCausalLM", "Dots3NoteForConditionalGeneration", "Dots3NoteTextForCausalLM"), DOTS3NOTE
)
