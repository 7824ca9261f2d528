"""MiniMax-M3, whose layers with experts have sparse attention."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXPERTS,
    GATED_FFN,
    HEAD_NORMS,
    PRE_NORMS,
    SEPARATE_QKV,
    SHARED_EXPERTS,
)
from localinfer.conversion.architectures.experts import MINIMAX_M2
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata import expert_metadata
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM

INDEXER = ("indexer.q_proj", "indexer.k_proj", "indexer.q_norm", "indexer.k_norm")
SPARSE = {"use_sparse_attention": True, "sparse_score_type": "max", "sparse_init_block": 0}  # all that is supported
INDEXER_KEYS = {  # GGUF's -> those of config.json
    "head_count": "sparse_num_index_heads", "key_length": "sparse_index_dim", "top_k": "sparse_topk_blocks",
    "block_size": "sparse_block_size",
}  # fmt: skip


def dense_layers(table: JsonObject, key: str, n_layer: int) -> int:
    """Return how many first layers a list of 0 and then 1 has a 0 for. Raises UnsupportedError for another order."""
    flags = table.get(key, list)
    dense = flags.count(0)
    if flags != [0] * dense + [1] * (n_layer - dense) or dense == n_layer:
        raise table.error(key, f"other than 0 and then 1, {n_layer} in all, is not supported", UnsupportedError)
    return dense


def read_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Set the number of first layers without experts, which have no indexer either, and add the sizes of the indexer.
    Raises UnsupportedError for another kind of sparse attention."""
    sparse, n_dense = config.child("sparse_attention_config"), dense_layers(config, "moe_layer_freq", hp.n_layer)
    if dense_layers(sparse, "sparse_attention_freq", hp.n_layer) != n_dense:
        raise sparse.error("sparse_attention_freq", "other than moe_layer_freq is not supported", UnsupportedError)
    for key, value in SPARSE.items():
        if sparse.values.get(key, value) != value:
            raise sparse.error(key, f"other than {value} is not supported", UnsupportedError)
    heads, size = (sparse.positive_int(INDEXER_KEYS[key], DEFAULT_MAXIMUM) for key in ("head_count", "key_length"))
    return replace(hp, n_dense_layers=n_dense, sizes={"index_size": size, "n_index": heads * size})


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of experts and of the indexer."""
    sparse = config.child("sparse_attention_config")
    sizes = {name: sparse.positive_int(key, DEFAULT_MAXIMUM) for name, key in INDEXER_KEYS.items()}
    sizes["local_blocks"] = sparse.get("sparse_local_block", int)
    return expert_metadata.sigmoid_experts(config, hp) | {
        **{f"attention.indexer.{name}": Field.uint32(number) for name, number in sizes.items()},
        "expert_weights_norm": Field.flag(True),
        "leading_dense_block_count": Field.uint32(hp.n_dense_layers),
    }


MINIMAX_M3 = Architecture(
    name="minimax-m3",
    name_map_architecture="dots1",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *HEAD_NORMS),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS, "exp_probs_b.bias", *INDEXER),
    dense_tensors=GATED_FFN,
    shapes={
        "indexer.q_proj": ("n_index", "n_embd"),
        "indexer.k_proj": ("index_size", "n_embd"),
        **dict.fromkeys(("indexer.q_norm", "indexer.k_norm"), ("index_size",)),
    },
    tensor_names={
        **MINIMAX_M2.tensor_names,
        **{f"block_sparse_moe.shared_experts.{each.split('_')[1]}_proj": each for each in SHARED_EXPERTS},
        **{f"self_attn.index_{each.removeprefix('indexer.')}": each for each in INDEXER},
    },
    f32_tensors=INDEXER[:2],
    ignored_tensors=r"patch_merge_mlp\..*",
    norm_offset=1.0,
    activations=("swigluoai", "silu"),
    has_partial_rope=True,
    key_aliases={"intermediate_size": "dense_intermediate_size", "moe_intermediate_size": "intermediate_size"},
    float_keys={"routed_scaling_factor": "expert_weights_scale"},
    int_keys={"n_shared_experts": "expert_shared_count"},
    read_hparams=read_hparams,
    metadata=metadata,
    required_values={
        "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True, "qk_norm_type": "per_head",
        "use_gemma_norm": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
    },
    defaults={"first_k_dense_replace": 0},
)  # fmt: skip
BY_CLASS = dict.fromkeys(("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"), MINIMAX_M3)
