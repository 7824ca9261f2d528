"""Tiny models of the Gemma family with encoders, for make_encoder_fixtures.py and make_sound_projector_fixtures.py."""

from typing import Any

import torch
import transformers
from encoder_families.spec import TEXT, Grid

ODD = {  # sizes that kernels read with padding
    "hidden_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24,
    "intermediate_size": 44,
}  # fmt: skip
UNCHANGED = {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]}
ODD_SOUNDS = {
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "subsampling_conv_channels": [64, 32],
    "conv_kernel_size": 3, "output_proj_dims": 96, "use_clipped_linears": False,
}  # fmt: skip


def gemma4(audio: dict[str, Any] | None = None, **vision: Any) -> Any:
    """Return a model whose products are clipped at bounds that some values exceed, and whose rows are standardized."""
    config = transformers.Gemma4Config(
        text_config={**TEXT, "layer_types": ["full_attention"], "global_head_dim": 32},
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 64,
            "use_clipped_linears": True, "standardize": True, **vision,
        },
        audio_config=audio,
    )  # fmt: skip
    model = transformers.Gemma4ForConditionalGeneration(config)
    fill_buffers(model)
    return model


def unclipped_gemma4() -> Any:
    """Return a model that neither clips nor standardizes."""
    return gemma4(use_clipped_linears=False, standardize=False, **ODD)


def hearing_gemma4(**changes: Any) -> Any:
    """Return a model with an encoder of sounds, too."""
    audio = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "subsampling_conv_channels": [32, 32],
        "output_proj_dims": 64, "input_feat_size": 32, **changes,
    }  # fmt: skip
    return gemma4(audio)


def odd_hearing_gemma4() -> Any:
    return hearing_gemma4(**ODD_SOUNDS, input_feat_size=64)


def fill_buffers(model: torch.nn.Module) -> None:
    """Give the bounds and the means and scales of columns values of a few bits."""
    generator = torch.Generator().manual_seed(21)
    for name, tensor in model.named_buffers():
        if name.endswith(("_min", "_max")):
            size = torch.randint(8, 12, (), generator=generator) / (4 if "input" in name else 8)
            tensor.copy_(-size if name.endswith("_min") else size)
        elif name.endswith(("std_bias", "std_scale")):
            tensor.copy_(torch.randint(1, 8, tensor.shape, generator=generator) / 8)


def gemma4_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Patches are in the order [y][x][channel]; positions are columns, then rows."""
    (rows, columns), size = grid, pixels.shape[2] // grid[0]
    patches = pixels[0].reshape(3, rows, size, columns, size).permute(1, 3, 2, 4, 0).reshape(1, rows * columns, -1)
    places = torch.stack(torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), -1)
    return model.model.get_image_features(patches, places.reshape(1, -1, 2)).pooler_output[0]


def gemma4_sound_rows(model: Any, features: torch.Tensor, _frames: int) -> torch.Tensor:
    mask = torch.ones(features.shape[0], features.shape[2], dtype=torch.bool)
    return model.model.get_audio_features(features.mT, mask).pooler_output[0]


def unified_gemma4() -> Any:
    """Return a model that reads pixels and samples without encoders."""
    config = transformers.Gemma4UnifiedConfig(
        text_config={**TEXT, "layer_types": ["full_attention"], "global_head_dim": 32},
        vision_config={
            "patch_size": 4, "mm_embed_dim": 64, "mm_posemb_size": 24, "output_proj_dims": 64, "pooling_kernel_size": 3
        },
        audio_config={"audio_embed_dim": 640},
    )  # fmt: skip
    return transformers.Gemma4UnifiedForConditionalGeneration(config)


def unified_sound_rows(model: Any, features: torch.Tensor, _frames: int) -> torch.Tensor:
    return model.model.get_audio_features(features.mT, None).pooler_output[0]
