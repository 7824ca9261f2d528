"""CogVLM and CogVLM2, whose classes transformers lacks."""

import json
import tempfile
from pathlib import Path
from typing import Any

import cogvlm_model
import torch
import transformers
from encoder_families.spec import MEAN, Grid, Rows, Spec
from safetensors.torch import save_file

import localinfer

VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_heads": 2, "image_size": 24,
    "patch_size": 4, "num_positions": 37, "layer_norm_eps": 1e-6, "hidden_act": "gelu",
}  # fmt: skip


def cogvlm() -> Any:
    return encoder(vision_config=VISION)


def cogvlm2() -> Any:
    changes = {
        "num_heads": 1, "num_hidden_layers": 3, "intermediate_size": 80, "image_size": 48, "patch_size": 6,
        "num_positions": 65, "layer_norm_eps": 1e-5,
    }  # fmt: skip
    return encoder(vision_config=VISION | changes, num_multi_query_heads=1)


def encoder(**changes: Any) -> Any:
    config = transformers.PretrainedConfig(hidden_size=64, intermediate_size=96, **changes)
    return cogvlm_model.CogVLMEncoder(config)


def cogvlm_rows(model: Any, pixels: torch.Tensor, _grid: Grid) -> Rows:
    return model.encode(pixels)


def named(config: dict[str, Any]) -> dict[str, Any]:
    return config | {
        "architectures": ["CogVLMForCausalLM"], "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64,
    }  # fmt: skip


def cogvlm2_file(model: Any) -> bytes:
    """Return the projector file. llama.cpp's converter has no name for the convolution."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        save_file(dict(model.state_dict()), path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(named(model.config.to_dict())))
        return localinfer.convert(path, path / "mmproj.gguf", "F32", mmproj=True).read_bytes()


SPECS = {
    "cogvlm": Spec(
        architecture="cogvlm", model=cogvlm, encode=cogvlm_rows, grids=[(6, 6)], patch=4, preprocessor=MEAN,
        written=named,
    ),
    "cogvlm2": Spec(
        architecture="cogvlm", model=cogvlm2, encode=cogvlm_rows, grids=[(8, 8)], patch=6, preprocessor=MEAN,
        file=cogvlm2_file,
    ),
}  # fmt: skip
