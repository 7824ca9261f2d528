"""Qwen4-Exp, whose encoder is that of Qwen3-VL without DeepStack."""

from typing import Any

import transformers
from encoder_families.spec import MEAN, Spec, video_patches

TEXT = {
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "vocab_size": 64, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "layer_types": ["linear_attention"], "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_num_key_heads": 1, "linear_num_value_heads": 1, "hc_count": 2,
    "hc_lowrank": 32, "ple_layer_ids": [], "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4, "in_channels": 3,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64, "num_position_embeddings": 36,
}  # fmt: skip


def qwen4exp() -> Any:
    config = transformers.Qwen4ExpConfig(text_config=TEXT, vision_config=VISION)
    return transformers.Qwen4ExpForConditionalGeneration(config)


SPECS = {
    "qwen4exp": Spec(
        architecture="qwen4exp", model=qwen4exp, encode=video_patches, grids=[(4, 6)], patch=4, preprocessor=MEAN
    ),
}
