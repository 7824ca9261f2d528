"""HunyuanVL and HunyuanOCR, whose checkpoints have other names of tensors than transformers."""

from functools import partial
from typing import Any

import torch
import transformers
from encoder_families.spec import MEAN, TEXT, Grid, Rows, Spec, as_patches, siglip

NAMES = {
    "model.vision_tower.": "vit.", ".layer_norm1.": ".input_layernorm.", ".fc1.": ".dense_h_to_4h.",
    ".layer_norm2.": ".post_attention_layernorm.", ".fc2.": ".dense_4h_to_h.", ".patch_merger.": ".perceive.",
    ".proj_conv.": ".proj.0.", ".proj_out.": ".proj.2.",
}  # fmt: skip


def published_name(name: str) -> str:
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def hunyuanvl(**changes: Any) -> Any:
    vision = siglip(24, 4, num_hidden_layers=3, max_image_size=24, hidden_act="gelu", **changes)
    config = transformers.HunYuanVLConfig(text_config=TEXT, vision_config=vision)
    return transformers.HunYuanVLForConditionalGeneration(config)


def hunyuanvl_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    patches = torch.tensor(as_patches(pixels, 4))
    return model.model.get_image_features(patches, torch.tensor([[1, *grid]])).pooler_output[0]


HUNYUAN_VL: dict[str, Any] = {
    "architecture": "hunyuan_vl", "encode": hunyuanvl_rows, "patch": 4,
    "preprocessor": {**MEAN, "min_pixels": 64, "max_pixels": 576},
    "saved": lambda tensors: {published_name(name): tensor for name, tensor in tensors.items()},
}  # fmt: skip
SPECS = {
    "hunyuanvl": Spec(model=hunyuanvl, grids=[(6, 6), (4, 10), (8, 4)], **HUNYUAN_VL),
    "hunyuanvl-large": Spec(
        model=partial(hunyuanvl, hidden_size=96, num_attention_heads=3), grids=[(4, 4), (10, 6)], **HUNYUAN_VL
    ),
}  # fmt: skip
