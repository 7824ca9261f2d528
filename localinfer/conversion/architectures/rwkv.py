"""RWKV-7, RWKV-6, QRWKV and ARWKV: recurrent states and token shift."""

from dataclasses import replace

import numpy as np

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import GATED_FFN, PRE_NORMS, biases
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.metadata import recurrent_metadata
from localinfer.conversion.tensor_formats.reorder import transpose, transposed_mixing
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM, MAXIMA

LORAS = {"w": "decay_rank", "a": "rate_rank", "v": "value_rank", "g": "gate_rank"}  # RWKV-7's low-rank projections
RWKV7 = Architecture(
    name="rwkv7",
    layer_tensors=(
        *("attn_norm", "attn_norm_2", "time_mix_ln"),
        *biases("attn_norm", "attn_norm_2", "time_mix_ln"),
        *(f"time_mix_{kind}" for kind in ("lerp_fused", "k_k", "k_a", "r_k", "receptance", "key", "value", "output")),
        *(f"time_mix_{kind}" for kind in ("w0", "w1", "w2", "a0", "a1", "a2", "g1", "g2")),
        *(f"channel_mix_{kind}" for kind in ("lerp_k", "key", "value")),
    ),
    not_first_layer_tensors=tuple(f"time_mix_v{number}" for number in range(3)),
    model_tensors=("token_embd_norm", "token_embd_norm.bias", "output_norm.bias"),
    shapes={
        **{f"time_mix_{kind}1": (rank, "n_embd") for kind, rank in LORAS.items()},
        **{f"time_mix_{kind}2": ("n_embd", rank) for kind, rank in LORAS.items()},
        **{f"time_mix_{kind}": ("n_embd",) for kind in ("w0", "a0", "v0", "k_k", "k_a", "ln")},
        **{f"time_mix_{kind}": ("n_embd", "n_embd") for kind in ("receptance", "key", "value", "output")},
        "time_mix_r_k": ("n_heads", "head_dim"),
        "time_mix_lerp_fused": ("n_lerps", "one", "one", "n_embd"),
        "channel_mix_lerp_k": ("n_embd",),
        "channel_mix_key": ("n_ff", "n_embd"),
        "channel_mix_value": ("n_embd", "n_ff"),
        "attn_norm_2": ("n_embd",),
    },
    final_shapes={"time_mix_r_k": ("n_embd",)},
    fused_sources={f"time_mix_{kind}0": f"time_mix_{kind}2.bias" for kind in "wav"},
    copied_tensors={f"blk.0.time_mix_v{number}.weight": f"blk.0.time_mix_a{number}.weight" for number in range(3)},
    ignored_tensors=r"model\.layers\.0\.attn\.v_lora\..*",
    tensor_names={
        "attn_norm": "attn_norm",
        "ffn_norm": "attn_norm_2",
        "attn.g_norm": "time_mix_ln",
        "attn.x_": "time_mix_lerp_fused",
        **{f"attn.{kind}": f"time_mix_{kind}" for kind in ("k_k", "k_a", "r_k")},
        **{f"attn.{kind}_lora.lora.0": f"time_mix_{kind}1" for kind in LORAS},
        **{f"attn.{kind}_lora.lora.2": f"time_mix_{kind}2" for kind in LORAS},
        **{f"attn.{kind[0]}_proj": f"time_mix_{kind}" for kind in ("receptance", "key", "value", "output")},
        "ffn.x_k": "channel_mix_lerp_k",
        **{f"ffn.{kind}": f"channel_mix_{kind}" for kind in ("key", "value")},
    },
    ffn_multiplier=4,
    norm="layer",
    activations=("sqrelu",),
    has_attention=False,
    has_rope=False,
    read_hparams=recurrent_metadata.rwkv_hparams,
    metadata=recurrent_metadata.rwkv_metadata,
    required_values={"norm_first": True, "norm_bias": True, "attn": None},
    defaults={
        "num_attention_heads": 1,
        "max_position_embeddings": 1 << 20,
        "head_dim": 64,
        "tie_word_embeddings": False,
    },
)


def rwkv6_keys(config: JsonObject) -> dict[str, int]:
    """Return the feed-forward length if config.json leaves it open."""
    if config.values.get("intermediate_size") is not None:
        return {}
    return {"intermediate_size": config.positive_int("hidden_size", MAXIMA["embedding_length"]) * 7 // 2 // 32 * 32}


def rwkv6_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the number of heads, and the low ranks, which are twice as large in the largest models."""
    if config.get("attention_hidden_size", int, hp.n_embd) != hp.n_embd:
        raise config.error("attention_hidden_size", f"other than {hp.n_embd} is not supported", UnsupportedError)
    heads, ranks = recurrent_metadata.wkv_heads(config, hp), (64, 128) if hp.n_embd == 4096 else (32, 64)
    return replace(hp, sizes=mixing_sizes(heads, *ranks))


def mixing_sizes(heads: int, rank: int, decay_rank: int) -> dict[str, int]:
    """Return the dimensions of a time mixing of five inputs."""
    return {"n_heads": heads, "n_lerps": 5, "rank": rank, "all_ranks": 5 * rank, "decay_rank": decay_rank}


def rescaled_layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return the factors of the matrices whose products are added to the residual stream: the residual stream is halved
    after every `rescale_every` layers."""
    every = config.get("rescale_every", int)
    if not 0 <= every <= DEFAULT_MAXIMUM:
        raise config.error("rescale_every", f"is {every}; it must be 0 to {DEFAULT_MAXIMUM}")
    factors = [np.float32(0.5 ** (layer // every)) if every else np.float32(1) for layer in range(hp.n_layer)]
    kinds = ("time_mix_output", "channel_mix_value")
    return tuple(LayerOverrides({"weight_factors": dict.fromkeys(kinds, each)} if each < 1 else {}) for each in factors)


def rwkv6_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return RWKV-6's metadata."""
    return mixing_metadata(hp, hp.head_dim) | {"rescale_every_n_layers": Field.uint32(config.get("rescale_every", int))}


def mixing_metadata(hp: HParams, head_size: int) -> dict[str, Field]:
    """Return the metadata of a time mixing of five inputs. The context length is nominal: a recurrent state has no
    limit."""
    return {
        **recurrent_metadata.UNLIMITED_CONTEXT,
        "feed_forward_length": Field.uint32(hp.n_ff),
        "wkv.head_size": Field.uint32(head_size),
        "time_mix_extra_dim": Field.uint32(hp.sizes["rank"]),
        "time_decay_extra_dim": Field.uint32(hp.sizes["decay_rank"]),
    }


MIXING = ("lerp_x", "lerp_fused", "w1", "w2", "decay", "decay_w1", "decay_w2")  # of tokens, and decays
PROJECTIONS = ("receptance", "key", "value", "gate", "output")
MIXING_SHAPES = {
    "time_mix_lerp_x": ("one", "one", "n_embd"),
    "time_mix_lerp_fused": ("n_lerps", "one", "one", "n_embd"),
    "time_mix_w1": ("all_ranks", "n_embd"),
    "time_mix_w2": ("n_lerps", "n_embd", "rank"),
    "time_mix_decay": ("one", "one", "n_embd"),
    "time_mix_decay_w1": ("decay_rank", "n_embd"),
    "time_mix_decay_w2": ("n_embd", "decay_rank"),
}
RWKV6 = Architecture(
    name="rwkv6",
    layer_tensors=(
        *("attn_norm", "attn_norm_2", "time_mix_ln"),
        *biases("attn_norm", "attn_norm_2", "time_mix_ln"),
        *(f"time_mix_{kind}" for kind in (*MIXING, "first", *PROJECTIONS)),
        *(f"channel_mix_{kind}" for kind in ("lerp_k", "lerp_r", "key", "value", "receptance")),
    ),
    model_tensors=RWKV7.model_tensors,
    shapes={
        **MIXING_SHAPES,
        **{f"time_mix_{kind}": ("n_embd", "n_embd") for kind in PROJECTIONS},
        "time_mix_first": ("n_heads", "head_dim"),
        "time_mix_ln": ("n_embd",),
        **{f"channel_mix_{kind}": ("one", "one", "n_embd") for kind in ("lerp_k", "lerp_r")},
        "channel_mix_key": ("n_ff", "n_embd"),
        "channel_mix_value": ("n_embd", "n_ff"),
        "channel_mix_receptance": ("n_embd", "n_embd"),
        "attn_norm_2": ("n_embd",),
    },
    final_shapes=dict.fromkeys(
        ("time_mix_lerp_x", "time_mix_decay", "channel_mix_lerp_k", "channel_mix_lerp_r"), ("n_embd",)
    ),
    reorder=dict.fromkeys(("time_mix_w1", "time_mix_w2", "time_mix_decay_w1", "time_mix_decay_w2"), transpose),
    tensor_names={"attention.time_maa_": "time_mix_lerp_fused"},
    norm="layer",
    has_attention=False,
    has_rope=False,
    key_aliases={"head_dim": "head_size"},
    adapted_keys=rwkv6_keys,
    read_hparams=rwkv6_hparams,
    layer_overrides=rescaled_layers,
    metadata=rwkv6_metadata,
    required_values={"head_size_divisor": 8},
    defaults={
        "num_attention_heads": 1,
        "max_position_embeddings": 1 << 20,
        "head_dim": 64,
        "rescale_every": 6,
        "tie_word_embeddings": False,
    },
)


def qrwkv_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the number of heads, and the low ranks, which are usually twice as large in the largest models."""
    heads, wide = recurrent_metadata.wkv_heads(config, hp), hp.n_embd >= 4096
    if heads != hp.n_head:
        raise config.error("num_attention_heads", f"is {hp.n_head}; heads of {hp.head_dim} values make {heads}")
    rank, decay_rank = (
        config.positive_int(f"lora_rank_{name}", hp.n_embd, usual)
        for name, usual in (("tokenshift", 64 if wide else 32), ("decay", 128 if wide else 64))
    )
    return replace(hp, sizes=mixing_sizes(heads, rank, decay_rank))


def qrwkv_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:  # noqa: ARG001
    """Return QRWKV's metadata, with the number of heads that have keys and values."""
    counts = {"attention.head_count_kv": Field.uint32(hp.n_head_kv), "token_shift_count": Field.uint32(1)}
    return mixing_metadata(hp, hp.head_dim) | counts


QRWKV = Architecture(
    name="rwkv6qwen2",
    layer_tensors=(*PRE_NORMS, *(f"time_mix_{kind}" for kind in (*MIXING, *PROJECTIONS)), *GATED_FFN),
    optional_layer_tensors=biases(*(f"time_mix_{kind}" for kind in ("receptance", "key", "value"))),
    shapes={
        **MIXING_SHAPES,
        "time_mix_w1": ("n_embd", "all_ranks"),
        "time_mix_w2": ("n_lerps", "rank", "n_embd"),
        **{f"time_mix_{kind}": ("n_embd", "n_embd") for kind in ("receptance", "gate", "output")},
        **{f"time_mix_{kind}": ("n_kv", "n_embd") for kind in ("key", "value")},
    },
    final_shapes={
        "time_mix_lerp_x": ("n_embd",),
        "time_mix_decay": ("n_embd",),
        "time_mix_w1": MIXING_SHAPES["time_mix_w1"],
        "time_mix_w2": MIXING_SHAPES["time_mix_w2"],
    },
    reorder={
        **dict.fromkeys(("time_mix_w1", "time_mix_w2"), transposed_mixing),
        **dict.fromkeys(("time_mix_decay_w1", "time_mix_decay_w2"), transpose),
    },
    tensor_names={"self_attn.time_maa_": "time_mix_lerp_fused"},
    has_attention=False,
    has_rope=False,
    read_hparams=qrwkv_hparams,
    metadata=qrwkv_metadata,
    required_values={
        "balance_state": True, "gate_rank_type": 1, "groupnorm_att": False, "use_rope": False, "use_tokenshift": True,
    },
    defaults={"max_position_embeddings": 1 << 20, "tie_word_embeddings": False},
)  # fmt: skip


def arwkv7_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the number of heads, and the low ranks, which all models have. Raises UnsupportedError for layers with
    attention."""
    layers, heads = config.values.get("wkv_layers", "full"), recurrent_metadata.wkv_heads(config, hp)
    if layers != "full" and not (isinstance(layers, list) and all(number in layers for number in range(hp.n_layer))):
        raise config.error("wkv_layers", "must be all layers: attention in some is not supported", UnsupportedError)
    if config.get("num_wkv_heads", int, heads) != heads:
        raise config.error("num_wkv_heads", f"must be {heads}: heads of {hp.head_dim} values make up the embedding")
    has_gate = config.get("wkv_has_gate", bool, True)
    ranks = {"decay_rank": 64, "rate_rank": 64, "value_rank": 32, "gate_rank": 128 if has_gate else 0}
    return replace(hp, sizes={**ranks, "n_heads": heads, "n_lerps": 6 if has_gate else 5})


def arwkv7_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return ARWKV's metadata."""
    return recurrent_metadata.rwkv_metadata(config, hp) | {"token_shift_count": Field.uint32(1)}


TIME_MIXER = "self_attn.time_mixer"
GATE, HEAD_NORM = ("time_mix_g1", "time_mix_g2"), ("time_mix_ln", "time_mix_ln.bias")
VECTORS = tuple(f"time_mix_{kind}" for kind in ("w0", "a0", "v0", "k_k", "k_a"))
ARWKV7 = Architecture(
    name="arwkv7",
    layer_tensors=(
        *PRE_NORMS,
        *(kind for kind in RWKV7.layer_tensors if kind.startswith("time_mix_") and kind not in (*GATE, *HEAD_NORM)),
        *GATED_FFN,
    ),
    not_first_layer_tensors=RWKV7.not_first_layer_tensors,
    shapes={**RWKV7.shapes, **dict.fromkeys(VECTORS, ("one", "one", "n_embd"))},
    final_shapes={**RWKV7.final_shapes, **dict.fromkeys(VECTORS, ("n_embd",))},
    reorder=dict.fromkeys((f"time_mix_{kind}{number}" for kind in LORAS for number in "12"), transpose),
    copied_tensors=RWKV7.copied_tensors,
    ignored_tensors=rf"model\.layers\.0\.{TIME_MIXER}\.v[012]",
    tensor_names={
        f"{TIME_MIXER}.x_": "time_mix_lerp_fused",
        f"{TIME_MIXER}.ln_x": "time_mix_ln",
        **{
            f"{TIME_MIXER}.{kind}": f"time_mix_{kind}"
            for kind in ("k_k", "k_a", "r_k", "receptance", "key", "value", "output")
        },
        **{f"{TIME_MIXER}.{kind}{number}": f"time_mix_{kind}{number}" for kind in LORAS for number in range(3)},
    },
    has_attention=False,
    has_rope=False,
    key_aliases={"head_dim": "head_size"},
    read_hparams=arwkv7_hparams,
    metadata=arwkv7_metadata,
    required_values={"wkv_version": 7, "head_size_divisor": 8},
    defaults={"max_position_embeddings": 1 << 20, "tie_word_embeddings": False},
)


def arwkv7(config: JsonObject) -> Architecture:
    """Return the architecture with the gate and the norm of heads that config.json has. Models without a gate may have
    the shares of its input."""
    has_gate, has_norm = (config.get(f"wkv_has_{name}", bool, True) for name in ("gate", "group_norm"))
    more = (*(GATE if has_gate else ()), *(HEAD_NORM if has_norm else ()))
    unused = "" if has_gate else rf"|.*\.{TIME_MIXER}\.x_g"
    return replace(
        ARWKV7,
        layer_tensors=(*ARWKV7.layer_tensors, *more),
        ignored_tensors=ARWKV7.ignored_tensors + unused,
        required_values={**ARWKV7.required_values, "wkv_has_group_norm": has_norm},
    )


BY_CLASS = {
    "RWKV7ForCausalLM": RWKV7,
    "Rwkv6ForCausalLM": RWKV6,
    "RWKV6Qwen2ForCausalLM": QRWKV,
    "RwkvHybridForCausalLM": arwkv7,
}
