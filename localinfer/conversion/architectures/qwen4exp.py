"""Qwen4-Exp: Qwen3.5's layers with experts, hyper-connections, an indexer of runs of positions, and an embedding of
n-grams in one layer."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import isqrt

import numpy as np

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import EXPERTS, HEAD_NORMS, SEPARATE_QKV, SHARED_EXPERTS
from localinfer.conversion.architectures.qwen import QWEN35MOE
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.metadata import recurrent_metadata
from localinfer.conversion.tensor_formats import reorder
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field
from localinfer.graph.compressed_attention import MAX_AVERAGED_RUN
from localinfer.graph.properties.hyper_connections import MAX_STREAMS
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM
from localinfer.graph.properties.ngrams import MAX_HEADS, MAX_LENGTH, MAX_ROW

PLE_LAYERS = "ple_layer_ids"  # counted from 1
SIZES = {  # by their keys in config.json
    "hc_count": "n_streams", "hc_lowrank": "hc_rank", "indexer_n_heads": "index_heads",
    "indexer_head_dim": "index_size", "indexer_budget": "index_top_k", "indexer_compress_ratio": "run",
}  # fmt: skip
MAXIMA = {"hc_count": MAX_STREAMS, "indexer_compress_ratio": MAX_AVERAGED_RUN}
STREAMS = {  # the parts of a hyper-connection
    "hc_norm": "norm", "input_mix_weight_down": "down", "input_mix_weight_up": "up", "block_inject_weight": "inject",
}  # fmt: skip
INDEXER = ("indexer.q_proj", "indexer.k_proj", "indexer.q_norm", "indexer.k_norm")
PLE = ("ple_key", "ple_value", "ple_norm_key", "ple_norm_query", "ple_norm_conv", "ple_conv1d")
TABLE = "per_layer_token_embd"
NGRAM_KEYS = {
    "layer_multipliers": "layer_multipliers", "ngram_heads_offsets": "head_offsets",
    "ngram_heads_vocab_sizes": "head_vocab_sizes",
}  # fmt: skip


def hyperparameters(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of recurrent heads, of the residual streams, of the indexer and of n-grams. Raises UnsupportedError
    for several keys of the indexer."""
    hp = recurrent_metadata.delta_net_hparams(config, hp)
    sizes = {name: config.positive_int(key, MAXIMA.get(key, DEFAULT_MAXIMUM)) for key, name in SIZES.items()}
    if config.get("indexer_kv_heads", int, 1) != 1:
        raise config.error("indexer_kv_heads", "other than 1 is not supported", UnsupportedError)
    n_index = sizes["index_heads"] * sizes["index_size"]
    sizes |= {"n_all_streams": sizes["n_streams"] * hp.n_embd, "n_index": n_index}
    sizes |= {"n_index_qk": n_index + sizes["index_size"]}
    of_ngrams = ngram_sizes(config, hp) if config.get(PLE_LAYERS, list, []) else {}
    return replace(hp, sizes={**hp.sizes, **sizes, **of_ngrams})


def ngram_sizes(config: JsonObject, hp: HParams) -> dict[str, int]:
    """Return the sizes of the embedding of n-grams: each head has a prime number of rows, the next one after that of
    the head before."""
    longest, heads = config.positive_int("ngram_size", MAX_LENGTH), config.positive_int("heads_per_ngram", MAX_HEADS)
    n_embd, count = config.positive_int("ple_embed_dim", DEFAULT_MAXIMUM, hp.n_embd), (longest - 1) * heads
    if not count or n_embd % count:
        raise config.error("ple_embed_dim", f"is {n_embd}; it must be a multiple of {count}, the number of heads")
    divisor = config.positive_int("make_ngram_vocab_size_divisible_by", DEFAULT_MAXIMUM, 128)
    base = config.positive_int("ngram_vocab_size_base", MAX_ROW // count, 20_000_000)
    n_rows = sum(islice(primes_from(base), count))
    return {
        "ngram_size": longest, "ngram_heads": heads, "n_ngram_embd": n_embd, "n_of_head": n_embd // count,
        "n_ngram_rows": -(-n_rows // divisor) * divisor,
        "ple_width": config.positive_int("ple_conv_kernel_size", DEFAULT_MAXIMUM),
    }  # fmt: skip


def primes_from(first: int) -> Iterator[int]:
    """Yield the prime numbers from `first` on."""
    number = max(first, 2)
    while True:
        if all(number % divisor for divisor in range(2, isqrt(number) + 1)):
            yield number
        number += 1


def layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return which tensors each layer may lack: those of n-grams, but in one layer."""
    with_ngrams = config.get(PLE_LAYERS, list, [])
    missing = (PLE if layer + 1 not in with_ngrams else () for layer in range(hp.n_layer))
    return tuple(LayerOverrides({}, frozenset(each)) for each in missing)


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of recurrent layers, experts, residual streams, indexer and n-grams."""
    names = {
        "hyper_connection.count": "n_streams", "hyper_connection.low_rank": "hc_rank",
        "attention.indexer.head_count": "index_heads", "attention.indexer.key_length": "index_size",
        "attention.indexer.top_k": "index_top_k",
    }  # fmt: skip
    runs = [hp.sizes["run"] if kind == "full_attention" else 0 for kind in hp.layer_types]
    return (
        recurrent_metadata.delta_net_moe(config, hp)
        | {key: Field.uint32(hp.sizes[name]) for key, name in names.items()}
        | {"attention.compress_ratios": Field.numbers(np.array(runs, np.int32))}
        | (ngram_metadata(config, hp) if config.get(PLE_LAYERS, list, []) else {})
    )


def ngram_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of the layer with n-grams. Of several tokens that end a text, the first one counts, as in
    transformers; llama.cpp's converter takes the last one."""
    numbers = {
        "ple.ngram_size": hp.sizes["ngram_size"], "ple.heads_per_ngram": hp.sizes["ngram_heads"],
        "ple.conv_kernel": hp.sizes["ple_width"], "embedding_length_per_layer_input": hp.sizes["n_of_head"],
    }  # fmt: skip
    ends = config.values.get("eos_token_id")
    end = ends[0] if isinstance(ends, list) and ends else ends
    if type(end) is not int or not 0 <= end < hp.n_vocab:
        raise config.error("eos_token_id", "must be the id of a token")
    numbers["ple.eos_token_id"] = end
    if "image_token_id" in config.values:
        numbers["ple.image_token_id"] = config.positive_int("image_token_id", DEFAULT_MAXIMUM)
    layer = Field.numbers(np.array(config.get(PLE_LAYERS, list), np.int32) - 1)
    return {"ple.layers": layer} | {key: Field.uint32(number) for key, number in numbers.items()}


def stream_tensors(name: str, branch: str) -> dict[str, str]:
    """Return the names of the tensors of a hyper-connection in checkpoints and in GGUF files."""
    return {f"{name}.{part}": f"{branch}_{kind}" for part, kind in STREAMS.items()}


OF_BRANCHES = stream_tensors("attn_hyper_connection", "hc_attn") | stream_tensors("mlp_hyper_connection", "hc_ffn")
OF_OUTPUT = {f"output_hc_{kind}": f"model.hyper_connection_mixer.{part}" for part, kind in list(STREAMS.items())[:3]}
SHAPES = {"norm": ("n_all_streams",), "inject": ("n_streams", "n_all_streams")} | {
    "down": ("hc_rank", "n_all_streams"), "up": ("n_all_streams", "hc_rank"),
}  # fmt: skip
QWEN4EXP = replace(
    QWEN35MOE,
    name="qwen4exp",
    name_map_architecture="qwen35moe",
    layer_tensors=(*OF_BRANCHES.values(), *EXPERTS, "ffn_gate_inp_shexp", *SHARED_EXPERTS),
    layer_type_tensors={
        "linear_attention": QWEN35MOE.layer_type_tensors["linear_attention"],
        "full_attention": (*SEPARATE_QKV, *HEAD_NORMS, *INDEXER),
    },
    output_norm="",
    model_tensors=tuple(OF_OUTPUT),
    shapes={
        **QWEN35MOE.shapes,
        **{name: SHAPES[name.rpartition("_")[2]] for name in (*OF_BRANCHES.values(), *OF_OUTPUT)},
        "indexer.qk_proj": ("n_index_qk", "n_embd"),
        "indexer.q_proj": ("n_index", "n_embd"),
        "indexer.k_proj": ("index_size", "n_embd"),
        **dict.fromkeys(("indexer.q_norm", "indexer.k_norm"), ("index_size",)),
        TABLE: ("n_ngram_rows", "n_of_head"),
        "ple_key": ("n_all_streams", "n_ngram_embd"),
        "ple_value": ("n_embd", "n_ngram_embd"),
        **dict.fromkeys(("ple_norm_key", "ple_norm_query", "ple_norm_conv"), ("n_all_streams",)),
        "ple_conv1d": ("n_all_streams", "ple_width"),
    },
    fused_sources={**QWEN35MOE.fused_sources, **dict.fromkeys(INDEXER[:2], "indexer.qk_proj")},
    reorder={
        **QWEN35MOE.reorder, "indexer.q_proj": reorder.index_queries, "indexer.k_proj": reorder.index_key,
    },
    tensor_names={
        **OF_BRANCHES,
        **{f"{name}.weight": f"{kind}.weight" for kind, name in OF_OUTPUT.items()},
        "self_attn.indexer.index_qk_proj": "indexer.qk_proj", "self_attn.indexer.q_layernorm": "indexer.q_norm",
        "self_attn.indexer.k_layernorm": "indexer.k_norm", "ple.key_proj": "ple_key", "ple.value_proj": "ple_value",
        **{f"ple.norm_{name}": f"ple_norm_{name}" for name in ("key", "query", "conv")}, "ple.conv1d": "ple_conv1d",
    },
    norm_offsets=dict.fromkeys(("ple_norm_key", "ple_norm_query", "ple_norm_conv"), 1.0),
    has_mtp=False,
    read_hparams=hyperparameters,
    metadata=metadata,
    layer_overrides=layers,
    required_values={**QWEN35MOE.required_values, "norm_topk_prob": True, "output_gate_type": "sigmoid"},
    defaults={"output_gate_type": "silu"},
)  # fmt: skip


def qwen4exp(config: JsonObject) -> Architecture:
    """Return the architecture, with the layer that has n-grams. Raises UnsupportedError for several such layers: files
    have one table."""
    table = config.child("text_config") if "text_config" in config.values else config
    with_ngrams = table.get(PLE_LAYERS, list, [])
    if not with_ngrams:
        return QWEN4EXP
    count = table.get("num_hidden_layers", int)
    if len(with_ngrams) > 1 or type(with_ngrams[0]) is not int or not 1 <= with_ngrams[0] <= count:
        raise table.error(PLE_LAYERS, "other than the number of one layer is not supported", UnsupportedError)
    where = f"model.layers.{with_ngrams[0] - 1}.ple.ple_embedding"
    return replace(
        QWEN4EXP,
        layer_tensors=(*QWEN4EXP.layer_tensors, *PLE),
        model_tensors=(*QWEN4EXP.model_tensors, TABLE),
        tensor_names={**QWEN4EXP.tensor_names, f"{where}.ngram_embedding.weight": f"{TABLE}.weight"},
        integers={f"{where}.{name}": f"qwen4exp.ple.{key}" for name, key in NGRAM_KEYS.items()},
    )


BY_CLASS = dict.fromkeys(("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"), qwen4exp)
