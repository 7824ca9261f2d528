"""MiniCPM-V. The classes of 2.6, 4.0 and 4.5 are not in transformers: their tower is that of Idefics2, and their
resampler is written here from the published formula. transformers has that of 4.6."""

import json
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import torch
import transformers
from encoder_families.spec import MEAN, TEXT, Grid, Rows, Spec, as_patches, siglip
from safetensors.torch import save_file
from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

from localinfer import convert

NAMES = {
    "tower.embeddings.patch_embedding": "v.patch_embd", "tower.embeddings.position_embedding": "v.position_embd",
    "tower.encoder.layers": "v.blk", "tower.post_layernorm": "v.post_ln", "layer_norm1": "ln1", "layer_norm2": "ln2",
    "mlp.fc1": "ffn_down", "mlp.fc2": "ffn_up", "self_attn.out_proj": "attn_out", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "resampler.kv_proj": "resampler.kv",
    "attn.out_proj": "attn.out",
}  # fmt: skip


class Resampler(torch.nn.Module):
    """Queries that attend to the patches of an image."""

    def __init__(self, n: int, n_queries: int, kv: int) -> None:
        super().__init__()
        self.query = torch.nn.Parameter(torch.zeros(n_queries, n))
        self.kv_proj = torch.nn.Linear(kv, n, bias=False)
        self.attn = torch.nn.MultiheadAttention(n, n // 128)
        self.ln_q, self.ln_kv, self.ln_post = (torch.nn.LayerNorm(n, eps=1e-6) for _ in range(3))
        self.proj = torch.nn.Parameter(torch.zeros(n, n))

    def forward(self, x: torch.Tensor, grid: Grid) -> torch.Tensor:
        values = self.ln_kv(self.kv_proj(x))
        keys = values + sines(values.shape[1], grid)
        return self.ln_post(self.attn(self.ln_q(self.query), keys, values)[0]) @ self.proj


def sines(n: int, grid: Grid) -> torch.Tensor:
    """Return the sines and cosines of columns and rows, (patches, n)."""
    omega = 10000.0 ** -(torch.arange(n // 4) / (n / 4))
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    angles = [at.reshape(-1, 1) * omega for at in (columns, rows)]
    return torch.cat([part for angle in angles for part in (angle.sin(), angle.cos())], 1)


class MiniCPMV(torch.nn.Module):
    """The tower and the resampler."""

    config = SimpleNamespace()

    def __init__(self, n: int, n_queries: int, *, version: int, patch: int, side: int, **sizes: Any) -> None:
        super().__init__()
        self.version, self.patch = version, patch
        self.vision = Idefics2VisionConfig(**siglip(side * patch, patch, num_hidden_layers=3, **sizes))
        self.tower = Idefics2VisionTransformer._from_config(self.vision, attn_implementation="eager")
        self.resampler = Resampler(n, n_queries, self.vision.hidden_size)

    def set_attn_implementation(self, name: str) -> None:
        """Do nothing: attention is eager."""


def minicpm_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    return model.resampler(model.tower(pixels).last_hidden_state[0], grid)


def minicpm_file(model: Any) -> bytes:
    """Return a file as llama.cpp's script for MiniCPM-V makes it of two parts of a checkpoint: up and down are swapped,
    and the positions of keys are stored."""
    vision, n = model.vision, model.resampler.proj.shape[0]
    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(Path(folder, "mmproj.gguf"), "clip")
        for key, flag in (("has_text_encoder", False), ("has_vision_encoder", True), ("has_minicpmv_projector", True)):
            writer.add_bool(f"clip.{key}", flag)
        writer.add_string("clip.projector_type", "resampler")
        writer.add_int32("clip.minicpmv_version", model.version)
        numbers = {
            "image_size": 8 * model.patch, "patch_size": model.patch, "embedding_length": vision.hidden_size,
            "feed_forward_length": vision.intermediate_size, "projection_dim": 0,
            "attention.head_count": vision.num_attention_heads, "block_count": vision.num_hidden_layers,
        }  # fmt: skip
        for key, number in numbers.items():
            writer.add_uint32(f"clip.vision.{key}", number)
        writer.add_uint32("clip.minicpmv_query_num", len(model.resampler.query))
        writer.add_float32("clip.vision.attention.layer_norm_epsilon", vision.layer_norm_eps)
        writer.add_bool("clip.use_gelu", True)
        for key in ("image_mean", "image_std"):
            writer.add_array(f"clip.vision.{key}", MEAN[key])
        writer.add_tensor("resampler.pos_embed_k", sines(n, (7, 7)).numpy())
        for name, tensor in model.state_dict().items():
            for old, new in NAMES.items():
                name = name.replace(old, new)
            parts, thirds = {name: tensor}, tensor.chunk(3)
            if "in_proj_" in name:
                parts = {name.replace("in_proj_", f"{kind}."): part for kind, part in zip("qkv", thirds, strict=True)}
            elif name == "resampler.proj":
                parts = {"resampler.proj.weight": tensor.T.contiguous()}
            for part_name, part in parts.items():
                writer.add_tensor(part_name, part.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return Path(folder, "mmproj.gguf").read_bytes()


def converted(model: Any) -> bytes:
    """Return the file that localinfer makes of the checkpoint, as published ones name its parts."""
    vision = model.vision.to_dict()
    config = {
        "architectures": ["MiniCPMV"], "version": 4.5, "hidden_size": model.resampler.proj.shape[0],
        "image_size": 8 * model.patch, "query_num": len(model.resampler.query), "vision_config": vision,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        Path(folder, "preprocessor_config.json").write_text(json.dumps({"norm_mean": [0.5] * 3, "norm_std": [0.5] * 3}))
        tensors = {name.replace("tower.", "vpm."): tensor for name, tensor in model.state_dict().items()}
        save_file(tensors, Path(folder, "model.safetensors"), {"format": "pt"})
        return convert(folder, Path(folder, "mmproj.gguf"), "F32", mmproj=True).read_bytes()


def minicpm46(mode: str, n: int, **sizes: Any) -> Any:
    """Return MiniCPM-V 4.6, which transformers has. Its table of positions has 70 x 70 rows, as libmtmd expects."""
    config = transformers.MiniCPMV4_6Config(
        text_config={**QWEN35, "hidden_size": n}, vision_config=siglip(70 * 4, 4, num_hidden_layers=3, **sizes),
        insert_layer_id=1, downsample_mode=mode,
    )  # fmt: skip
    return transformers.MiniCPMV4_6ForConditionalGeneration(config)


def minicpm46_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> Rows:
    """Patches are one after the other, (1, channels, side, patches * side)."""
    patches = torch.tensor(as_patches(pixels, 4)).reshape(-1, 3, 4, 4).permute(1, 2, 0, 3).reshape(1, 3, 4, -1)
    return model.model.get_image_features(patches, torch.tensor([grid])).pooler_output[0]


QWEN35 = {
    **TEXT, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 1,
    "linear_num_value_heads": 1, "layer_types": ["full_attention"],
}  # fmt: skip
MINICPM46: dict[str, Any] = {"architecture": "qwen35", "encode": minicpm46_rows, "patch": 4}
MINICPM: dict[str, Any] = {"encode": minicpm_rows, "preprocessor": MEAN}
SPECS = {
    "minicpm-v": Spec(
        architecture="qwen2", model=partial(MiniCPMV, 128, 12, version=3, patch=4, side=6), patch=4,
        grids=[(6, 6), (4, 9), (2, 3)], embedding_length=128, file=minicpm_file, **MINICPM,
    ),
    "minicpm-v4.5": Spec(
        architecture="qwen3",
        model=partial(MiniCPMV, 256, 8, version=6, patch=5, side=7, num_attention_heads=1, intermediate_size=44),
        patch=5, grids=[(7, 3), (1, 5), (8, 8)], embedding_length=256, file=converted, **MINICPM,
    ),
    "minicpm-v4.6": Spec(
        model=partial(minicpm46, "16x", 64), grids=[(8, 8), (4, 12)], **MINICPM46,
        preprocessor={**MEAN, "scale_resolution": 32, "downsample_mode": "16x"},
    ),
    "minicpm-v4.6-4x": Spec(
        model=partial(minicpm46, "4x", 96, num_attention_heads=1, intermediate_size=64), grids=[(6, 2), (4, 4)],
        preprocessor={**MEAN, "scale_resolution": 16, "downsample_mode": "4x"}, embedding_length=96, **MINICPM46,
    ),
}  # fmt: skip
