"""MiniMax-M3: attention to blocks of positions, which an indexer chooses for each key head."""

from typing import Any

from reference_spec import Shapes, Spec, rope, sizes
from transformers import MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig

VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 28,
}  # fmt: skip
INDEXER = {  # published keys -> those of transformers
    "sparse_num_index_heads": "index_n_heads", "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size", "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}  # fmt: skip
OWN = {
    "hidden_act": "swigluoai", "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True,
    "qk_norm_type": "per_head", "use_gemma_norm": True, "n_shared_experts": 1,
}  # fmt: skip


def published(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as published files have it."""
    text = config["text_config"]
    flags = [int(kind == "sparse") for kind in text["mlp_layer_types"]]
    sparse = {key: text[name] for key, name in INDEXER.items()} | {
        "use_sparse_attention": True, "sparse_score_type": "max", "sparse_init_block": 0,
        "sparse_attention_freq": flags, "sparse_disable_index_value": flags,
    }  # fmt: skip
    added = {*INDEXER.values(), "mlp_layer_types", "layer_types", "rope_parameters"}
    parameters = text["rope_parameters"]
    ropes = {"rope_theta": parameters["rope_theta"], "partial_rotary_factor": parameters["partial_rotary_factor"]}
    of_file = {key: value for key, value in text.items() if key not in added} | ropes | OWN
    return config | {"text_config": of_file | {"moe_layer_freq": flags, "sparse_attention_config": sparse}}


def of_text(shapes: Shapes) -> Shapes:
    """Return the shapes of the text model."""
    return {name: shape for name, shape in shapes.items() if name.startswith("language_model.")}


def model(dense: int, layers: int, rotated: float, **more: Any) -> Spec:
    """Return a model whose first layers are dense, with this part of each head rotated."""
    kinds = ["dense"] * dense + ["sparse"] * (layers - dense)
    text = more | rope(theta=5e6, partial_rotary_factor=rotated) | {
        "rotary_dim": int(rotated * more["head_dim"]), "mlp_layer_types": kinds,
        "layer_types": ["full_attention"] * dense + ["minimax_m3_sparse"] * (layers - dense),
        "dense_intermediate_size": 160, "intermediate_size": 64, "shared_intermediate_size": 64,
    }  # fmt: skip
    return Spec(
        architecture="minimax-m3", saved=True, norm=0.0, written=published, shapes=of_text,
        model=MiniMaxM3SparseForConditionalGeneration,
        config=MiniMaxM3VLConfig(text_config=text, vision_config=VISION, projector_hidden_size=16),
    )


MODELS = {
    "minimax-m3": model(
        1, 3, 0.5, **sizes(4, 2, 3, head_dim=32), num_local_experts=4, num_experts_per_tok=2, index_n_heads=2,
        index_head_dim=64, index_block_size=16, index_topk_blocks=3, index_local_blocks=1,
    ),
    "minimax-m3-wide": model(
        0, 3, 0.25, **sizes(5, 5, 3, head_dim=64), num_local_experts=5, num_experts_per_tok=2, index_n_heads=5,
        index_head_dim=32, index_block_size=32, index_topk_blocks=2, index_local_blocks=1, routed_scaling_factor=1.5,
    ),
}
