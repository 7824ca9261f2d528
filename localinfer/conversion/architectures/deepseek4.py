"""DeepSeek-V4: compressed attention, hyper-connections, and experts that the number of a token chooses."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import EXPERTS, PRE_NORMS, SHARED_EXPERTS
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.draft_heads.mtp import MERGE
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.metadata.expert_metadata import experts
from localinfer.conversion.tensor_formats.dequantized_matrix import decode, dequantized
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import Floats
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyper_connections import MAX_ITERATIONS, MAX_STREAMS
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM

OVERLAPPING = 4  # positions of a run, where runs overlap and an indexer chooses some of them
MAX_RUN = 1 << 16
SQRT_SOFTPLUS = 4  # GGUF's number of this gating

LATENT = ("attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv", "attn_kv_a_norm", "attn_output_a", "attn_output_b")
STREAMS = tuple(f"hc_{branch}_{kind}" for branch in ("attn", "ffn") for kind in ("fn", "base", "scale"))
STREAM_SHAPES = {
    **{f"hc_{branch}_fn": ("n_weights", "n_all_streams") for branch in ("attn", "ffn")},
    **{f"hc_{branch}_base": ("n_weights",) for branch in ("attn", "ffn")},
    **{f"hc_{branch}_scale": ("n_kinds",) for branch in ("attn", "ffn")},
}
COMPRESSOR = tuple(f"attn_compressor_{kind}" for kind in ("kv", "gate", "ape", "norm"))
INDEXER_COMPRESSOR = tuple(f"indexer_compressor_{kind}" for kind in ("kv", "gate", "ape", "norm"))
INDEXER = ("indexer.attn_q_b", "indexer.proj", *INDEXER_COMPRESSOR)
MERGE_SHAPES = {"fn": ("n_streams", "n_all_streams"), "base": ("n_streams",), "scale": ("one",)}
MTP_NAMES = {  # of an MTP layer, in checkpoints -> as those of other families
    "norm.weight": "shared_head.norm.weight",
    **dict(zip((f"hc_head_{kind}" for kind in MERGE_SHAPES), MERGE, strict=True)),
}  # fmt: skip
MTP_TENSOR = re.compile(rf"(?P<layer>layers\.\d+\.)(?P<name>{'|'.join(map(re.escape, MTP_NAMES))})")
E_PROJ, H_PROJ, EH_PROJ = (f".{name}_proj.weight" for name in ("e", "h", "eh"))
USED = "num_experts_per_tok"
TABLE, BIAS = "ffn_gate_tid2eid", "exp_probs_b.bias"
SIZES = {  # by their keys in config.json
    "q_lora_rank": "q_rank", "o_groups": "n_groups", "o_lora_rank": "o_rank", "index_n_heads": "index_heads",
    "index_head_dim": "index_size", "index_topk": "index_top_k",
}  # fmt: skip
MATRICES = {"wkv.weight": "kv.weight", "wgate.weight": "gate.weight", "ape": "ape.weight", "norm.weight": "norm.weight"}


def read_runs(config: JsonObject, n_layer: int) -> list[int]:
    """Return the positions of a run in each layer, 0 if a layer has none, and those of MTP layers."""
    runs = config.get("compress_ratios", list)
    if len(runs) < n_layer or any(type(run) is not int or run == 1 or not 0 <= run <= MAX_RUN for run in runs):
        raise config.error("compress_ratios", f"must have 0 or a number from 2 to {MAX_RUN} for {n_layer} layers")
    return runs


def hyperparameters(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of queries, of the output, of the indexer and of the residual streams."""
    sizes = {name: config.positive_int(key, DEFAULT_MAXIMUM) for key, name in SIZES.items()}
    n_rot, used = config.positive_int("qk_rope_head_dim", hp.head_dim), config.positive_int(USED, hp.n_expert)
    if hp.n_head % sizes["n_groups"]:
        raise config.error("o_groups", f"is {sizes['n_groups']}; it must divide {hp.n_head}")
    sizes |= {
        "n_index": sizes["index_heads"] * sizes["index_size"], "n_low": sizes["n_groups"] * sizes["o_rank"],
        "n_of_group": hp.n_head // sizes["n_groups"] * hp.head_dim, "n_used": used, "n_hash": n_hash(config, hp),
        **stream_sizes(config, hp),
    }  # fmt: skip
    return replace(hp, rope=replace(hp.rope, n_rot=n_rot), sizes=sizes)


def stream_sizes(config: JsonObject, hp: HParams) -> dict[str, int]:
    """Return the sizes of the residual streams, and of the tensors of their weights."""
    count = config.positive_int("hc_mult", MAX_STREAMS)
    return {
        "n_streams": count, "n_all_streams": count * hp.n_embd, "n_weights": count * (2 + count), "n_kinds": 3
    }  # fmt: skip


def stream_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of the residual streams, and the limits of the gates of experts."""
    limits = Field.numbers(np.full(hp.n_layer + hp.n_mtp_layers, config.positive_float("swiglu_limit"), np.float32))
    iterations = config.positive_int("hc_sinkhorn_iters", MAX_ITERATIONS)
    return {
        "hyper_connection.count": Field.uint32(hp.sizes["n_streams"]),
        "hyper_connection.sinkhorn_iterations": Field.uint32(iterations),
        "hyper_connection.epsilon": Field.float32(config.positive_float("hc_eps")),
        "swiglu_clamp_exp": limits,
        "swiglu_clamp_shexp": limits,
    }


def n_hash(config: JsonObject, hp: HParams) -> int:
    """Return the number of first layers in which the number of a token chooses the experts."""
    count = config.get("num_hash_layers", int)
    if not 0 <= count <= hp.n_layer:
        raise config.error("num_hash_layers", f"is {count}; it must be 0 to {hp.n_layer}")
    return count


def layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return the sizes of each layer's runs, and which tensors it lacks. MTP layers have no runs."""
    overrides, runs = [], [*read_runs(config, hp.n_layer), *[0] * hp.n_mtp_layers][: hp.n_layer + hp.n_mtp_layers]
    if any(runs[hp.n_layer :]):
        raise config.error("compress_ratios", "other than 0 for an MTP layer is not supported", UnsupportedError)
    for layer, run in enumerate(runs):
        missing = {*(() if run else COMPRESSOR), *(() if run == OVERLAPPING else INDEXER)}
        missing.add(BIAS if layer < hp.sizes["n_hash"] else TABLE)
        parts = 2 if run == OVERLAPPING else 1
        sizes = {"run": run, "n_compressed": parts * hp.head_dim, "n_index_compressed": parts * hp.sizes["index_size"]}
        overrides.append(LayerOverrides({"sizes": {**hp.sizes, **sizes}}, frozenset(missing)))
    return tuple(overrides)


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of attention, of the residual streams and of experts."""
    names = {
        "attention.q_lora_rank": "q_rank", "attention.output_group_count": "n_groups",
        "attention.output_lora_rank": "o_rank", "attention.indexer.head_count": "index_heads",
        "attention.indexer.key_length": "index_size", "attention.indexer.top_k": "index_top_k",
        "hash_layer_count": "n_hash",
    }  # fmt: skip
    runs = np.array(read_runs(config, hp.n_layer), np.int32)
    sizes = {key: Field.uint32(hp.sizes[name]) for key, name in names.items()}
    return experts(config, hp) | stream_metadata(config, hp) | sizes | {
        "attention.compress_ratios": Field.numbers(runs),
        "attention.compress_rope_freq_base": Field.float32(config.positive_float("compress_rope_theta")),
        "embedding_length_out": Field.uint32(hp.sizes["n_all_streams"]),
        "expert_gating_func": Field.uint32(SQRT_SOFTPLUS),
    }  # fmt: skip


def adapt_tensors(stored: Mapping[str, StoredTensor], hp: HParams) -> dict[str, StoredTensor]:
    """Return the tensors with those of MTP layers named as in other families, and the two halves of the projection
    before such a layer as one matrix."""
    adapted, shape = dict(stored), (hp.n_embd, hp.n_embd)
    for name, tensor in stored.items():
        if match := MTP_TENSOR.fullmatch(name):
            adapted[match["layer"] + MTP_NAMES[match["name"]]] = adapted.pop(name)
        elif name.endswith(E_PROJ) and (other := adapted.pop(name.removesuffix(E_PROJ) + H_PROJ, None)):
            for half in (tensor, other):
                if half.shape != shape:
                    raise half.error(f"has shape {list(half.shape)}, not {list(shape)}")
            whole, values = name.replace(E_PROJ, EH_PROJ), partial(side_by_side, adapted.pop(name), other)
            adapted[whole] = dequantized(whole, (hp.n_embd, 2 * hp.n_embd), tensor, values)
    return adapted


def side_by_side(left: StoredTensor, right: StoredTensor) -> Floats:
    """Return the matrix with the columns of both."""
    return np.concatenate([decode(left), decode(right)], axis=1)


DEEPSEEK4 = Architecture(
    name="deepseek4",
    layer_tensors=(*PRE_NORMS, "attn_sinks", *LATENT, *STREAMS, *COMPRESSOR, *INDEXER),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS, BIAS, TABLE),
    model_tensors=("output_hc_fn", "output_hc_base", "output_hc_scale"),
    shapes={
        "attn_kv": ("head_dim", "n_embd"),
        "attn_kv_a_norm": ("head_dim",),
        "attn_output_a": ("n_low", "n_of_group"),
        "attn_output_b": ("n_embd", "n_low"),
        **STREAM_SHAPES,
        **{f"output_hc_{kind}": shape for kind, shape in MERGE_SHAPES.items()},
        **dict(zip(MERGE, MERGE_SHAPES.values(), strict=True)),
        **dict.fromkeys(COMPRESSOR[:2], ("n_compressed", "n_embd")),
        **dict.fromkeys(INDEXER_COMPRESSOR[:2], ("n_index_compressed", "n_embd")),
        "attn_compressor_ape": ("run", "n_compressed"),
        "indexer_compressor_ape": ("run", "n_index_compressed"),
        "attn_compressor_norm": ("head_dim",),
        "indexer_compressor_norm": ("index_size",),
        "indexer.attn_q_b": ("n_index", "q_rank"),
        "indexer.proj": ("index_heads", "n_embd"),
        TABLE: ("n_vocab", "n_used"),
    },
    tensor_names={
        "embed.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "head.weight": "output.weight",
        **{f"hc_head_{kind}": f"output_hc_{kind}.weight" for kind in ("fn", "base", "scale")},
        **{name: f"{name}.weight" for name in STREAMS},
        "attn_norm": "attn_norm", "ffn_norm": "ffn_norm", "attn.attn_sink": "attn_sinks.weight",
        "attn.wq_a": "attn_q_a", "attn.q_norm": "attn_q_a_norm", "attn.wq_b": "attn_q_b", "attn.wkv": "attn_kv",
        "attn.kv_norm": "attn_kv_a_norm", "attn.wo_a": "attn_output_a", "attn.wo_b": "attn_output_b",
        **{f"attn.compressor.{name}": f"attn_compressor_{kind}" for name, kind in MATRICES.items()},
        **{f"attn.indexer.compressor.{name}": f"indexer_compressor_{kind}" for name, kind in MATRICES.items()},
        "attn.indexer.wq_b": "indexer.attn_q_b", "attn.indexer.weights_proj": "indexer.proj",
        "ffn.gate": "ffn_gate_inp", "ffn.gate.bias": BIAS, "ffn.gate.tid2eid": f"{TABLE}.weight",
        **{f"ffn.experts.w{n}": f"ffn_{kind}_exps" for n, kind in ((1, "gate"), (2, "down"), (3, "up"))},
        **{f"ffn.shared_experts.w{n}": f"ffn_{kind}_shexp" for n, kind in ((1, "gate"), (2, "down"), (3, "up"))},
    },
    adapt_tensors=adapt_tensors,
    has_mtp=True,
    has_partial_rope=True,
    may_have_window=True,
    float_keys={"routed_scaling_factor": "expert_weights_scale"},
    bool_keys={"norm_topk_prob": "expert_weights_norm"},
    int_keys={"n_shared_experts": "expert_shared_count"},
    read_hparams=hyperparameters,
    metadata=metadata,
    layer_overrides=layers,
    required_values={"scoring_func": "sqrtsoftplus", "attention_bias": False, "mlp_bias": False},
)  # fmt: skip
BY_CLASS = {"DeepseekV4ForCausalLM": DEEPSEEK4}
