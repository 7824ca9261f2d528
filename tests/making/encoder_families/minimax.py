"""MiniMax-M3. llama.cpp's converter expects heads of 80 values, of which the axes rotate 78."""

from typing import Any

import transformers
from encoder_families.spec import MEAN, Spec, siglip, video_patches

TEXT = {
    "hidden_size": 64, "intermediate_size": 64, "dense_intermediate_size": 64, "shared_intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 64,
    "num_local_experts": 2, "num_experts_per_tok": 1, "mlp_layer_types": ["dense"], "layer_types": ["full_attention"],
}  # fmt: skip


def minimax_m3() -> Any:
    vision = siglip(
        24, 4, hidden_size=160, num_hidden_layers=3, hidden_act="gelu", temporal_patch_size=2, spatial_merge_size=2,
    )  # fmt: skip
    config = transformers.MiniMaxM3VLConfig(text_config=TEXT, vision_config=vision, projector_hidden_size=64)
    return transformers.MiniMaxM3SparseForConditionalGeneration(config)


SPECS = {
    "minimax_m3": Spec(
        architecture="minimax-m3", model=minimax_m3, encode=video_patches, grids=[(4, 4), (2, 8), (6, 4)], patch=4,
        preprocessor=MEAN,
    ),
}  # fmt: skip
