"""EXAONE 4.5, whose encoder is that of Qwen2.5-VL with fewer heads of keys and values."""

from typing import Any

import transformers
from encoder_families.spec import MEAN, TEXT, Spec, video_patches


def exaone4_5() -> Any:
    vision = {
        "depth": 3, "hidden_size": 64, "intermediate_size": 48, "num_heads": 4, "num_key_value_heads": 2,
        "patch_size": 4, "window_size": 112, "out_hidden_size": 64, "fullatt_block_indexes": [1],
    }  # fmt: skip
    config = transformers.Exaone4_5_Config(text_config={**TEXT, "model_type": "exaone4"}, vision_config=vision)
    return transformers.Exaone4_5_ForConditionalGeneration(config)


SPECS = {
    "exaone4_5": Spec(
        architecture="exaone4", model=exaone4_5, encode=video_patches, grids=[(2, 32), (4, 6)], patch=4,
        preprocessor={**MEAN, "min_pixels": 64, "max_pixels": 65536},
    ),
}  # fmt: skip
