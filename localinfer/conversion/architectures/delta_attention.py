"""Models with Kimi Delta Attention (KDA) in most layers, and latent attention in the others."""

from collections.abc import Mapping
from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import EXPERTS, GATED_FFN, PRE_NORMS, SHARED_EXPERTS, W123
from localinfer.conversion.architectures.deepseek import MLA, NARROW_QUERIES
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.metadata import recurrent_metadata
from localinfer.conversion.tensor_formats import reorder
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM, MAXIMA

KDA = (
    *("attn_q", "attn_k", "attn_v", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v", "ssm_f_a", "ssm_g_a", "ssm_beta"),
    *("ssm_a", "ssm_dt.bias", "ssm_norm"),
)
CONVOLUTIONS = ("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v")
KIMI_LINEAR = Architecture(
    name="kimi-linear",
    layer_tensors=(*PRE_NORMS, "attn_output"),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS, "exp_probs_b.bias"),
    dense_tensors=GATED_FFN,
    layer_type_tensors={"linear_attention": (*KDA, "ssm_f_b", "ssm_g_b"), "full_attention": ()},
    shapes={
        **dict.fromkeys(("ssm_f_a", "ssm_g_a"), ("n_key", "n_embd")),
        **dict.fromkeys(("ssm_f_b", "ssm_g_b"), ("n_keys", "n_key")),
        **dict.fromkeys(CONVOLUTIONS, ("n_keys", "width")),
        "ssm_a": ("one", "one", "n_heads", "one"),
        "ssm_dt": ("n_keys",),
        "ssm_norm": ("n_key",),
    },
    final_shapes=dict.fromkeys(CONVOLUTIONS, ("one", "n_keys", "one", "width")),
    fused_sources=dict.fromkeys(("attn_k_b", "attn_v_b"), "attn_kv_b"),
    reorder={"attn_k_b": reorder.latent_keys, "attn_v_b": reorder.latent_values},
    tensor_names={
        **{f"block_sparse_moe.experts.{old}": new for old, new in zip(W123, EXPERTS[1:], strict=True)},
        **{f"block_sparse_moe.{kind.removeprefix('ffn_')}_proj": kind for kind in GATED_FFN},
        "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
    },
    has_rope=False,
    has_partial_rope=True,
    ignores_mtp=True,
    key_aliases={
        "max_position_embeddings": "model_max_length", "num_experts_per_tok": "num_experts_per_token",
        "n_shared_experts": "num_shared_experts",
    },
    float_keys={"routed_scaling_factor": "expert_weights_scale"},
    read_hparams=recurrent_metadata.kda_hparams,
    metadata=recurrent_metadata.kda_metadata,
    layer_overrides=recurrent_metadata.kda_layers,
    required_values={
        "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "num_expert_group": 1, "moe_layer_freq": 1,
        "mla_use_nope": True,
    },
)  # fmt: skip
BAILINGMOE3 = replace(
    KIMI_LINEAR,
    name="bailingmoe3",
    layer_type_tensors={"linear_attention": KDA, "full_attention": ("attn_gate",)},
    shapes={
        **KIMI_LINEAR.shapes,
        **dict.fromkeys(("ssm_f_a", "ssm_g_a"), ("n_keys", "n_embd")),
        "ssm_a": ("n_heads",),
        "attn_gate": ("n_head", "n_embd"),
    },
    final_shapes={**KIMI_LINEAR.final_shapes, "ssm_a": ("n_heads", "one")},
    decay_sign=1.0,
    has_mtp=True,
    name_map_architecture="bailingmoe2",
    tensor_names={
        **{f"attention.{kind}_proj": f"attn_{kind}" for kind in ("q", "k", "v", "q_a", "q_b", "kv_b")},
        **{f"attention.{kind}_conv1d": f"ssm_conv1d_{kind}" for kind in "qkv"},
        **{f"attention.{kind}_a_layernorm": f"attn_{kind}_a_norm" for kind in ("q", "kv")},
        "attention.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "attention.dense": "attn_output",
        "attention.f_proj": "ssm_f_a",
        "attention.b_proj": "ssm_beta",
        "attention.A_log": "ssm_a",
        "attention.dt_proj.bias": "ssm_dt.bias",
        "attention.o_norm": "ssm_norm",
        "mlp.gate.expert_bias": "exp_probs_b.bias",
    },
    has_rope=True,
    metadata=recurrent_metadata.bounded_kda_metadata,
    required_values={
        "score_function": "sigmoid", "no_kda_lora": True, "kda_safe_gate": True, "attention_bias": False,
        "gated_attention_proj_granularity_type": "head_wise", "expert_swiglu_limit_list": None,
        "share_expert_swiglu_limit_list": None,
    },
)  # fmt: skip


def with_layers(architecture: Architecture, config: JsonObject, kinds: list[str], **values: object) -> Architecture:
    """Return the architecture with the types of its layers, and with the tensors of latent attention, whose queries may
    have a low rank. Keys of config.json override the `values`."""
    queries = NARROW_QUERIES if config.values.get("q_lora_rank") else ("attn_q",)
    kinds_of = architecture.layer_type_tensors
    latent = (*queries, *(name for name in MLA if name != "attn_output"), *kinds_of["full_attention"])
    return replace(
        architecture,
        layer_type_tensors={**kinds_of, "full_attention": latent},
        defaults={"layer_types": kinds, "first_k_dense_replace": 1, "scoring_func": "sigmoid", **values},
    )


def with_gates(architecture: Architecture, kinds: list[str], module: str, gates: Mapping[str, str]) -> Architecture:
    """Return the architecture with GGUF's names of the gates of layers, which have the same name in checkpoints."""
    of_layers = {
        f"model.layers.{layer}.{module}.g_proj.weight": f"blk.{layer}.{gates[kind]}.weight"
        for layer, kind in enumerate(map(str, kinds))
        if kind in gates
    }
    return replace(architecture, tensor_names={**architecture.tensor_names, **of_layers})


def kimi_linear(config: JsonObject, architecture: Architecture = KIMI_LINEAR) -> Architecture:
    """Return the architecture with the layers that `linear_attn_config` lists, which counts them from 1."""
    kda = config.child("linear_attn_config")
    listed = kda.get("full_attn_layers", list, [])
    layers = range(1, 1 + config.positive_int("num_hidden_layers", MAXIMA["block_count"]))
    kinds = ["full_attention" if number in listed else "linear_attention" for number in layers]
    names = {"head_dim": "head_dim", "num_heads": "num_heads", "conv_kernel_dim": "short_conv_kernel_size"}
    given = {f"linear_{key}": kda.values[name] for key, name in names.items() if name in kda.values}
    return with_layers(architecture, config, kinds, **given)


def bailingmoe3(config: JsonObject) -> Architecture:
    """Return the architecture, in which the last layer of each group, and those after the last whole group, have latent
    attention."""
    layers = config.positive_int("num_hidden_layers", MAXIMA["block_count"])
    group = config.positive_int("layer_group_size", DEFAULT_MAXIMUM)
    kinds = config.get("layer_types", list, []) or [
        "full_attention" if (layer + 1) % group == 0 or layer >= layers // group * group else "linear_attention"
        for layer in range(layers)
    ]
    names = {
        "linear_head_dim": "head_dim", "linear_conv_kernel_dim": "short_conv_kernel_size",
        "n_group": "num_expert_group", "norm_topk_prob": "moe_renormalize",
    }  # fmt: skip
    given = {key: config.values[name] for key, name in names.items() if name in config.values}
    gates = {"linear_attention": "ssm_g_a", "full_attention": "attn_gate"}
    of_mtp_layers = {"attention.g_proj": gates["full_attention"]}
    named = replace(BAILINGMOE3, tensor_names={**BAILINGMOE3.tensor_names, **of_mtp_layers})
    return with_layers(with_gates(named, kinds, "attention", gates), config, kinds, **given)


BY_CLASS = {
    "KimiLinearForCausalLM": kimi_linear,
    "BailingMoeV3ForCausalLM": bailingmoe3,
    "BailingHybridForCausalLM": bailingmoe3,
}
