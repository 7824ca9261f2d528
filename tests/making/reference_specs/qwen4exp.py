"""Qwen4-Exp: hyper-connections of a low rank, an indexer of runs of positions, and an embedding of n-grams."""

from typing import Any

from reference_spec import Spec, rope, sizes
from transformers import Qwen4ExpTextConfig

OF_TRANSFORMERS = "indexed_attention"  # what published files call full_attention
SPACE, GATE = ord(" "), "sigmoid"


def published(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as published files have it."""
    kinds = [kind.replace(OF_TRANSFORMERS, "full_attention") for kind in config["layer_types"]]
    kept = {key: value for key, value in config.items() if key != "intermediate_size"}
    return kept | {"layer_types": kinds, "output_gate_type": GATE}


def model(layers: str, **more: Any) -> Spec:
    """Return a model with a layer of linear attention for each "l", and one of full attention for each "f". Texts end
    with a space, so that there are several in one."""
    kinds = {"l": "linear_attention", "f": "full_attention"}
    config = Qwen4ExpTextConfig(
        **more, layer_types=[kinds[each] for each in layers], linear_key_head_dim=32, linear_value_head_dim=32,
        output_gate_type=GATE, eos_token_id=SPACE, indexer_kv_heads=1, moe_intermediate_size=64,
        shared_expert_intermediate_size=96, make_ngram_vocab_size_divisible_by=8,
    )  # fmt: skip
    return Spec(architecture="qwen4exp", norm=0.0, saved=True, written=published, config=config)


def shape(heads: int, kv: int, layers: int, **more: Any) -> dict[str, Any]:
    """Return the sizes of a model, without the token that ends a text."""
    return {key: value for key, value in (sizes(heads, kv, layers) | more).items() if key != "eos_token_id"}


MODELS = {
    "qwen4exp": model(
        "llff", **shape(3, 1, 4, head_dim=64), **rope(theta=1e7, partial_rotary_factor=0.25, mrope_section=[3, 3, 2]),
        linear_num_key_heads=2, linear_num_value_heads=6, num_experts=5, num_experts_per_tok=2, hc_count=4,
        hc_lowrank=32, indexer_n_heads=8, indexer_head_dim=64, indexer_budget=24, indexer_compress_ratio=4,
        ple_layer_ids=[2], ngram_size=4, heads_per_ngram=1, ngram_vocab_size_base=60, ple_conv_kernel_size=4,
        split_ngram_parts=3,
    ),
    "qwen4exp-wide": model(
        "lfl", **shape(4, 2, 3, head_dim=32, hidden_size=128),
        **rope(theta=1e6, partial_rotary_factor=0.5, mrope_section=[4, 2, 2]), linear_num_key_heads=3,
        linear_num_value_heads=3, num_experts=4, num_experts_per_tok=3, hc_count=2, hc_lowrank=64, indexer_n_heads=12,
        indexer_head_dim=32, indexer_budget=30, indexer_compress_ratio=6, ple_layer_ids=[1], ngram_size=3,
        heads_per_ngram=2, ngram_vocab_size_base=40, ple_conv_kernel_size=3, split_ngram_parts=2, seed=77,
    ),
}
