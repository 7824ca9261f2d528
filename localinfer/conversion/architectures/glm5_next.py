"""GLM-5-Next: Kimi Delta Attention (KDA) in most layers, sparse latent attention in the others, and several residual
streams."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.deepseek import (
    GLM_DSA,
    INDEXER,
    MLA,
    NARROW_QUERIES,
    index_sizes,
    sparse_metadata,
)
from localinfer.conversion.architectures.deepseek4 import STREAM_SHAPES, STREAMS, stream_metadata, stream_sizes
from localinfer.conversion.architectures.delta_attention import KIMI_LINEAR
from localinfer.conversion.architectures.experts import DOTS1
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.config_key_aliases import normalize_keys
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.metadata.recurrent_metadata import kda_hparams, kda_layers, kda_metadata, read_decay_bound
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM, MAXIMA

PERIOD, DENSE_LAYERS, DECAY_BOUND = 4, 3, -5.0  # where config.json does not state them
POOL = "index_kpool"  # positions of a run
KINDS = ("gate", "ape")
COMPRESSOR = tuple(f"indexer_compressor_{kind}" for kind in KINDS)
BOUND = "linear_lower_bound"


def read_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of KDA, of latent attention and its indexer, and of the residual streams."""
    hp, index = kda_hparams(config, hp), index_sizes(config)
    run = config.positive_int(POOL, DEFAULT_MAXIMUM)
    if run < 2 or index["index_top_k"] % run:
        raise config.error(POOL, f"is {run}; it must be at least 2, and divide {index['index_top_k']}, the index_topk")
    return replace(hp, sizes={**hp.sizes, **index, **stream_sizes(config, hp), "run": run})


def layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return the sizes of heads of each layer, and which layers have no indexer, because they attend to the positions
    that an earlier one chose. MTP layers have one residual stream, and need no indexer."""
    kinds = config.get("indexer_types", list, ["full"] * hp.n_layer)
    if len(kinds) != hp.n_layer or not {"full", "shared"}.issuperset(map(str, kinds)):
        raise config.error("indexer_types", f"must be full or shared, {hp.n_layer} in all")
    shared = frozenset([*INDEXER, *COMPRESSOR])
    missing = [frozenset[str]() if kind == "full" else shared for kind in kinds]
    missing += [shared.union(STREAMS)] * hp.n_mtp_layers
    return tuple(map(LayerOverrides, (each.values for each in kda_layers(config, hp)), missing))


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of attention, of the residual streams and of experts."""
    bound = {"kda.gate_lower_bound": read_decay_bound(config, BOUND)} if config.values.get(BOUND) is not None else {}
    more = {
        "attention.layer_norm_epsilon": Field.float32(1e-6),
        "attention.indexer.kpool": Field.uint32(hp.sizes["run"]),
        "attention.indexer.kpool_select_tail": Field.flag(True),
    }
    return kda_metadata(config, hp) | sparse_metadata(config, hp) | stream_metadata(config, hp) | bound | more


GLM5_NEXT = replace(
    KIMI_LINEAR,
    name="glm5-next",
    name_map_architecture="kimi-linear",
    layer_tensors=(*KIMI_LINEAR.layer_tensors, *STREAMS),
    layer_type_tensors={
        **KIMI_LINEAR.layer_type_tensors,
        "full_attention": (*NARROW_QUERIES, *(name for name in MLA if name != "attn_output"), *INDEXER, *COMPRESSOR),
    },
    shapes={
        **KIMI_LINEAR.shapes,
        **{name: GLM_DSA.shapes[name] for name in INDEXER if name in GLM_DSA.shapes},
        **STREAM_SHAPES,
        "ssm_a": ("n_heads",),
        "indexer_compressor_gate": ("index_size", "n_embd"),
        "indexer_compressor_ape": ("run", "index_size"),
    },
    tensor_names={
        **DOTS1.tensor_names,
        **{old: new for old, new in GLM_DSA.tensor_names.items() if ".indexer." in old},
        **{name: f"{name}.weight" for name in STREAMS},
        **{f"self_attn.indexer.index_kpool_compress_{kind}": f"indexer_compressor_{kind}.weight" for kind in KINDS},
    },
    ignores_mtp=False,
    has_mtp=True,
    f32_tensors=COMPRESSOR,
    key_aliases={"head_dim": "qk_nope_head_dim"},
    bool_keys={"norm_topk_prob": "expert_weights_norm"},
    read_hparams=read_hparams,
    metadata=metadata,
    layer_overrides=layers,
    required_values={
        "scoring_func": "sigmoid", "qk_rope_head_dim": 0, "index_kpool_always_select_tail": True, "mhc": True,
        "attention_bias": False, "mla_use_nope": True,
    },
)  # fmt: skip


def glm5_next(config: JsonObject) -> Architecture:
    """Return the architecture with the layers and the sizes of KDA that config.json has, or with their defaults."""
    config = normalize_keys(config, {}, {})  # also of a nested text model
    n, kda = config.positive_int("num_hidden_layers", MAXIMA["block_count"]), config.child("linear_attn_config")
    names = {
        "linear_head_dim": "head_dim", "linear_num_heads": "num_heads", BOUND: "gate_lower_bound",
        "linear_conv_kernel_dim": "short_conv_kernel_size",
    }  # fmt: skip
    given = {key: kda.values[name] for key, name in names.items() if kda.values.get(name) is not None}
    has_bound = kda.get("safe_gate", bool, True) or "gate_lower_bound" not in kda.values
    bound = {BOUND: DECAY_BOUND} if has_bound else {}
    kinds = ["full_attention" if layer % PERIOD == PERIOD - 1 else "linear_attention" for layer in range(n)]
    defaults = {
        "layer_types": kinds, "first_k_dense_replace": min(DENSE_LAYERS, n - 1), "scoring_func": "sigmoid",
        "norm_topk_prob": True,
    }  # fmt: skip
    return replace(GLM5_NEXT, defaults=defaults | bound | given)


BY_CLASS = {"Glm5NextForConditionalGeneration": glm5_next}
