"""Nemotron Nano 2 VL, whose tower transformers has as RADIO, and whose projector is written here."""

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from encoder_families.spec import MEAN, Grid, Rows, Spec
from safetensors.torch import save_file
from transformers.models.radio.configuration_radio import RadioConfig
from transformers.models.radio.modeling_radio import RadioModel

from localinfer import convert

NAMES = {
    "vision_model.embeddings.patch_projection": "patch_generator.embedder",
    "vision_model.embeddings.position_embedding": "patch_generator.pos_embed",
    "vision_model.embeddings.cls_register_token": "patch_generator.cls_token.token",
    "vision_model.encoder.layer": "blocks", "attention.o_proj": "attn.proj",
}  # fmt: skip
TOWER = "vision_model.radio_model.model."


class Nemotron(torch.nn.Module):
    """The tower and the projector, for images of a fixed size."""

    def __init__(self, side: int, patch: int, **sizes: Any) -> None:
        super().__init__()
        self.config = RadioConfig(
            patch_size=patch, max_img_size=side * patch, hidden_size=32, mlp_ratio=1.5, num_hidden_layers=3, **sizes
        )
        self.vision_model = RadioModel._from_config(self.config, attn_implementation="eager")
        self.vision_model.make_preprocessor_external()
        norm = torch.nn.RMSNorm(4 * self.config.hidden_size, eps=1e-5)
        up, down = torch.nn.Linear(128, 80, bias=False), torch.nn.Linear(80, 64, bias=False)
        self.mlp1 = torch.nn.Sequential(norm, up, torch.nn.ReLU(), down)

    def set_attn_implementation(self, name: str) -> None:
        """Do nothing: attention is eager. Layer scales are 1, as checkpoints have none."""
        self.scales = [p for name, p in self.named_parameters() if "layer_scale" in name]


def nemotron_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    for scale in model.scales:
        scale.fill_(1.0)
    rows = model.vision_model(pixels).features[0]
    norm, up, relu, down = model.mlp1
    shuffled = rows.reshape(grid[0] // 2, 2, grid[1] // 2, 2, -1).transpose(1, 2).reshape(-1, 4 * rows.shape[1])
    return down(relu(up(norm(shuffled))) ** 2)


def converted(model: Any) -> bytes:
    """Return the file that localinfer makes of the checkpoint, as published ones name its parts."""
    sizes = model.config
    vision = {
        "patch_size": sizes.patch_size, "hidden_size": sizes.hidden_size, "intermediate_size": 48,
        "num_hidden_layers": sizes.num_hidden_layers, "num_attention_heads": sizes.num_attention_heads,
    }  # fmt: skip
    config = {
        "architectures": ["NemotronH_Nano_VL_V2"], "vision_config": vision, "force_image_size": sizes.max_img_size,
        "llm_config": {"hidden_size": 64},
    }  # fmt: skip
    tensors: dict[str, torch.Tensor] = {}
    found = {name: tensor for name, tensor in model.state_dict().items() if "layer_scale" not in name}
    for name, tensor in found.items():
        for old, new in NAMES.items():
            name = name.replace(old, new)
        if "attention.q_proj" in name:
            parts = [found[key] for key in qkv_names(name)]
            name, tensor = name.replace("attention.q_proj", "attn.qkv"), torch.cat(parts)
        if "attention." not in name and "summary_idxs" not in name:
            tensors[name if name.startswith("mlp1.") else TOWER + name] = tensor.contiguous()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        Path(folder, "preprocessor_config.json").write_text(json.dumps(MEAN))
        save_file(tensors, Path(folder, "model.safetensors"), {"format": "pt"})
        return convert(folder, Path(folder, "mmproj.gguf"), "F32", mmproj=True).read_bytes()


def qkv_names(name: str) -> list[str]:
    """Return the names of queries, keys and values in the model, given that of queries in a checkpoint."""
    own = name.replace("blocks", "vision_model.encoder.layer")
    return [own.replace("q_proj", f"{kind}_proj") for kind in "qkv"]


NEMOTRON: dict[str, Any] = {
    "architecture": "nemotron_h", "encode": nemotron_rows, "preprocessor": MEAN, "file": converted
}  # fmt: skip
SPECS = {
    "nemotron-vl": Spec(model=partial(Nemotron, 6, 4, num_attention_heads=2), grids=[(6, 6)], patch=4, **NEMOTRON),
    "nemotron-vl-odd": Spec(
        model=partial(Nemotron, 4, 6, num_attention_heads=1, num_cls_tokens=2, num_registers=1), grids=[(4, 4)],
        patch=6, **NEMOTRON,
    ),
}  # fmt: skip
