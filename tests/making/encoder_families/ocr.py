"""Encoders of readers of documents whose classes transformers lacks, composed of the parts that it has."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from encoder_families.spec import MEAN, Spec
from safetensors.torch import save_file
from transformers.models.clip.modeling_clip import CLIPVisionModel
from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import (
    DeepseekOcr2SamVisionEncoder,
    DeepseekOcr2VisionModel,
)

import localinfer

Tensors = dict[str, torch.Tensor]
N_TEXT = 64

# --- DeepSeek-OCR: SAM, as in the second version, and CLIP on its rows ---

SAM = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "output_channels": 16, "image_size": 128,
    "patch_size": 16, "window_size": 4, "global_attn_indexes": [2], "downsample_channels": [32, 64], "mlp_ratio": 2.0,
}  # fmt: skip
CLIP = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 14, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu",
}  # fmt: skip
NAMES = {
    "sam_model.patch_embed.projection": "sam_model.patch_embed.proj", "sam_model.layers": "sam_model.blocks",
    "sam_model.neck.conv1": "sam_model.neck.0", "sam_model.neck.layer_norm1": "sam_model.neck.1",
    "sam_model.neck.conv2": "sam_model.neck.2", "sam_model.neck.layer_norm2": "sam_model.neck.3",
    "sam_model.proj.conv1": "sam_model.net_2", "sam_model.proj.conv2": "sam_model.net_3",
    "vision_model.encoder.layers": "vision_model.transformer.layers",
}  # fmt: skip
SAM_NORMS = {".layer_norm1.": ".norm1.", ".layer_norm2.": ".norm2."}


class DeepseekOcrVision(transformers.PreTrainedModel):
    """The encoder of DeepSeek-OCR."""

    config_class = transformers.PreTrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        sam = transformers.DeepseekOcr2Config(vision_config={"sam_config": config.sam}).vision_config.sam_config
        sam._attn_implementation = "eager"
        self.sam_model = DeepseekOcr2SamVisionEncoder(sam)
        self.vision_model = CLIPVisionModel(transformers.CLIPVisionConfig(**config.clip, attn_implementation="eager"))
        self.projector = torch.nn.Linear(2 * config.clip["hidden_size"], N_TEXT)
        self.image_newline = torch.nn.Parameter(torch.zeros(N_TEXT))
        self.view_seperator = torch.nn.Parameter(torch.zeros(N_TEXT))
        self.post_init()


def deepseekocr() -> Any:
    return DeepseekOcrVision(transformers.PreTrainedConfig(sam=SAM, clip=CLIP))


def deepseekocr_of_other_size() -> Any:
    """Return an encoder with the windows of published ones, in which some layers attend to all patches twice."""
    sam = SAM | {
        "hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 3, "window_size": 14, "image_size": 64,
        "global_attn_indexes": [2, 5], "downsample_channels": [16, 32], "mlp_ratio": 0.5,
    }  # fmt: skip
    clip = CLIP | {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 1, "image_size": 28}
    return DeepseekOcrVision(transformers.PreTrainedConfig(sam=sam, clip=clip))


def deepseekocr_rows(model: Any, pixels: torch.Tensor, _grid: tuple[int, int]) -> torch.Tensor:
    """Return the projected rows, and those of the end of a line and of the image."""
    seen, clip = model.sam_model(pixels).last_hidden_state, model.vision_model
    clip = getattr(clip, "vision_model", clip)
    table = clip.embeddings.position_embedding.weight
    side = int((len(table) - 1) ** 0.5)
    patches = torch.nn.functional.interpolate(
        table[1:].reshape(1, side, side, -1).permute(0, 3, 1, 2), size=seen.shape[2:], mode="bicubic", antialias=True,
    )  # fmt: skip
    rows = (seen + patches).flatten(2).permute(0, 2, 1)
    first = (clip.embeddings.class_embedding + table[0])[None, None]
    hidden = clip.encoder(inputs_embeds=clip.pre_layrnorm(torch.cat([first, rows], 1))).last_hidden_state
    both = torch.cat([hidden[0, 1:], seen.flatten(2)[0].T], 1)
    return torch.cat([model.projector(both), model.image_newline[None], model.view_seperator[None]])


def deepseekocr_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json with the keys of published ones."""
    sam, clip = config["sam"], config["clip"]
    widths = {
        "clip-l-14-224": {
            "width": clip["hidden_size"], "heads": clip["num_attention_heads"], "layers": clip["num_hidden_layers"],
            "image_size": clip["image_size"], "patch_size": clip["patch_size"],
        },
        "sam_vit_b": {
            "width": sam["hidden_size"], "heads": sam["num_attention_heads"], "layers": sam["num_hidden_layers"],
            "global_attn_indexes": sam["global_attn_indexes"], "downsample_channels": sam["downsample_channels"],
        },
    }  # fmt: skip
    return {
        "architectures": ["DeepseekOCRForCausalLM"], "model_type": "deepseek_vl_v2",
        "language_config": {"hidden_size": N_TEXT, "num_hidden_layers": 1},
        "vision_config": {"image_size": 1024, "window_size": sam["window_size"], "width": widths},
    }  # fmt: skip


def deepseekocr_saved(tensors: Tensors) -> Tensors:
    """Return the tensors with the names of published checkpoints, and with queries, keys and values as one."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        for old, new in NAMES.items():
            name = name.replace(old, new)
        if name.startswith("sam_model."):
            for old, new in SAM_NORMS.items():
                name = name.replace(old, new)
        if "post_layernorm" in name or ".k_proj." in name or ".v_proj." in name:
            continue
        if ".q_proj." in name:
            where = next(each for each in tensors if each.endswith(name.partition("layers.")[2]) and "vision" in each)
            parts = [tensors[where.replace(".q_proj.", f".{kind}_proj.")] for kind in "qkv"]
            name, tensor = name.replace(".q_proj.", ".qkv_proj."), torch.cat(parts)
        if name.startswith("projector."):
            name = name.replace("projector.", "projector.layers.")
        found[f"model.{name}"] = tensor.contiguous()
    return found


# --- DeepSeek-OCR 2: SAM, and layers of a language model on its rows and queries ---

N_TEXT2 = 32  # 144 rows of this length are written for each image
NAMES2 = {
    "tower.sam_encoder.": "sam_model.", "tower.vision_encoder.": "qwen2_model.model.model.",
    "tower.query_768_resolution": "qwen2_model.query_768", "tower.query_1024_resolution": "qwen2_model.query_1024",
}  # fmt: skip
QWEN2 = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "vocab_size": 1,
}  # fmt: skip


class DeepseekOcr2Vision(transformers.PreTrainedModel):
    """The encoder of DeepSeek-OCR 2 and its projector."""

    config_class = transformers.PreTrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        vision = {"sam_config": config.sam, "encoder_config": config.qwen2}
        whole = transformers.DeepseekOcr2Config(vision_config=vision)
        whole._attn_implementation = "eager"
        self.tower = DeepseekOcr2VisionModel(whole.vision_config)
        self.projector = torch.nn.Linear(config.qwen2["hidden_size"], N_TEXT2)
        self.view_seperator = torch.nn.Parameter(torch.zeros(N_TEXT2))
        self.post_init()


def deepseekocr2() -> Any:
    sam = SAM | {
        "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 1, "window_size": 3,
        "downsample_channels": [16, 32], "mlp_ratio": 1.0,
    }  # fmt: skip
    return DeepseekOcr2Vision(transformers.PreTrainedConfig(sam=sam, qwen2=QWEN2))


def deepseekocr2_rows(model: Any, pixels: torch.Tensor, _grid: tuple[int, int]) -> torch.Tensor:
    """Return the projected rows, and that of the end of the image."""
    return torch.cat([model.projector(model.tower(pixels).last_hidden_state[0]), model.view_seperator[None]])


def deepseekocr2_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json with the keys of published ones, and with sizes that those assume."""
    sam, qwen2 = config["sam"], config["qwen2"]
    widths = {
        "qwen2-0-5b": {"dim": qwen2["hidden_size"]},
        "sam_vit_b": {
            "width": sam["hidden_size"], "heads": sam["num_attention_heads"], "layers": sam["num_hidden_layers"],
        },
    }  # fmt: skip
    vision = {
        "image_size": 128, "window_size": sam["window_size"], "width": widths, "layers": qwen2["num_hidden_layers"],
        "num_attention_heads": qwen2["num_attention_heads"], "intermediate_size": qwen2["intermediate_size"],
        "num_key_value_heads": qwen2["num_key_value_heads"],
    }  # fmt: skip
    return {
        "architectures": ["DeepseekOCR2ForCausalLM"], "model_type": "deepseek_vl_v2", "vision_config": vision,
        "language_config": {"hidden_size": N_TEXT2, "num_hidden_layers": 1},
    }  # fmt: skip


def deepseekocr2_saved(tensors: Tensors) -> Tensors:
    """Return the tensors with the names of published checkpoints."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        for old, new in {**NAMES2, **NAMES, "projector.": "projector.layers."}.items():
            name = name.replace(old, new)
        if name.startswith("sam_model."):
            for old, new in SAM_NORMS.items():
                name = name.replace(old, new)
        found[f"model.{name}"] = tensor.contiguous()
    return found


def deepseekocr2_file(model: Any) -> bytes:
    """Return the file that localinfer converts: llama.cpp's converter knows the number of heads of one model only."""
    with tempfile.TemporaryDirectory() as folder:
        save_file(deepseekocr2_saved(model.state_dict()), Path(folder, "model.safetensors"), {"format": "pt"})
        for name, values in ("config", deepseekocr2_config(model.config.to_dict())), ("preprocessor_config", MEAN):
            Path(folder, f"{name}.json").write_text(json.dumps(values))
        out = Path(folder, "mmproj.gguf")
        localinfer.convert(folder, out, type="F32", mmproj=True)
        return out.read_bytes()


# --- dots.ocr, from the formulas of its published code, in double precision ---


class DotsLayer(torch.nn.Module):
    """The tensors of a layer."""

    def __init__(self, n: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.RMSNorm(n), torch.nn.RMSNorm(n)
        self.attn = torch.nn.ModuleDict({
            "qkv": torch.nn.Linear(n, 3 * n, bias=False), "proj": torch.nn.Linear(n, n, bias=False),
        })  # fmt: skip
        self.mlp = torch.nn.ModuleDict({
            "fc1": torch.nn.Linear(n, hidden, bias=False), "fc2": torch.nn.Linear(hidden, n, bias=False),
            "fc3": torch.nn.Linear(n, hidden, bias=False),
        })  # fmt: skip


class DotsVision(transformers.PreTrainedModel):
    """The encoder of dots.ocr; `config` has its vision_config."""

    config_class = transformers.PreTrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        vision = config.vision_config
        n, wide = vision["embed_dim"], vision["embed_dim"] * vision["spatial_merge_size"] ** 2
        patchifier = {
            "proj": torch.nn.Conv2d(3, n, vision["patch_size"], vision["patch_size"]), "norm": torch.nn.RMSNorm(n),
        }  # fmt: skip
        self.vision_tower = torch.nn.ModuleDict({
            "patch_embed": torch.nn.ModuleDict({"patchifier": torch.nn.ModuleDict(patchifier)}),
            "blocks": torch.nn.ModuleList(
                [DotsLayer(n, vision["intermediate_size"]) for _ in range(vision["num_hidden_layers"])]
            ),
            "post_trunk_norm": torch.nn.RMSNorm(n),
            "merger": torch.nn.ModuleDict({
                "ln_q": torch.nn.LayerNorm(n, eps=1e-6),
                "mlp": torch.nn.Sequential(
                    torch.nn.Linear(wide, wide), torch.nn.GELU(), torch.nn.Linear(wide, N_TEXT)
                ),
            }),
        })  # fmt: skip
        self.post_init()


def dots_ocr(**changes: Any) -> Any:
    """Return an encoder; `changes` are those of its sizes."""
    vision = {
        "embed_dim": 32, "intermediate_size": 48, "num_hidden_layers": 3, "patch_size": 4, "num_attention_heads": 2,
        "spatial_merge_size": 2, "rms_norm_eps": 1e-5, **changes,
    }  # fmt: skip
    vision["hidden_size"] = vision["embed_dim"]
    return DotsVision(transformers.PreTrainedConfig(vision_config=vision, hidden_size=N_TEXT, num_hidden_layers=1))


def dots_ocr_config(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"architectures": ["DotsOCRForCausalLM"], "model_type": "dots_ocr"}


def rms_norm(x: torch.Tensor, norm: torch.nn.RMSNorm, eps: float) -> torch.Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * norm.weight


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return heads, (rows, heads, size), with pairs of their halves rotated."""
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def dots_ocr_rows(model: Any, pixels: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Return the rows in the order of squares of patches, which is that of the processor."""
    vision, tower = model.config.vision_config, model.double().vision_tower
    merge, heads, eps = vision["spatial_merge_size"], vision["num_attention_heads"], vision["rms_norm_eps"]
    size = vision["embed_dim"] // heads
    order = torch.arange(grid[0] * grid[1]).reshape(grid[0] // merge, merge, grid[1] // merge, merge)
    order = order.permute(0, 2, 1, 3).reshape(-1)
    patchifier = tower["patch_embed"]["patchifier"]
    x = rms_norm(patchifier["proj"](pixels.double())[0].flatten(1).T[order], patchifier["norm"], eps)
    frequencies = 10000.0 ** (-torch.arange(0, size // 2, 2).double() / (size // 2))
    angles = torch.cat([(order // grid[1])[:, None] * frequencies, (order % grid[1])[:, None] * frequencies], 1)
    for layer in tower["blocks"]:
        q, k, v = layer.attn["qkv"](rms_norm(x, layer.norm1, eps)).reshape(len(x), 3, heads, size).unbind(1)
        scores = torch.einsum("qhc,khc->hqk", rotated(q, angles), rotated(k, angles)) / size**0.5
        x = x + layer.attn["proj"](torch.einsum("hqk,khc->qhc", scores.softmax(-1), v).reshape(len(x), -1))
        h = rms_norm(x, layer.norm2, eps)
        x = x + layer.mlp["fc2"](torch.nn.functional.silu(layer.mlp["fc1"](h)) * layer.mlp["fc3"](h))
    x = tower["merger"]["ln_q"](rms_norm(x, tower["post_trunk_norm"], eps))
    rows = tower["merger"]["mlp"](x.reshape(len(x) // merge**2, -1)).float()
    model.float()
    return rows


DEEPSEEK_OCR: dict[str, Any] = {
    "architecture": "deepseek2-ocr", "encode": deepseekocr_rows, "patch": 16, "preprocessor": MEAN,
    "written": deepseekocr_config, "saved": deepseekocr_saved,
}  # fmt: skip
DOTS_OCR: dict[str, Any] = {
    "architecture": "qwen2", "encode": dots_ocr_rows, "written": dots_ocr_config, "patch": 4,
    "preprocessor": {**MEAN, "min_pixels": 64, "max_pixels": 576},
}  # fmt: skip
SPECS = {
    "deepseekocr": Spec(model=deepseekocr, grids=[(8, 8), (10, 10)], **DEEPSEEK_OCR),
    "deepseekocr2": Spec(
        model=deepseekocr2, grids=[(5, 5)], architecture="deepseek2-ocr", encode=deepseekocr2_rows, patch=16,
        preprocessor=MEAN, file=deepseekocr2_file, embedding_length=N_TEXT2,
    ),
    "deepseekocr-large": Spec(model=deepseekocr_of_other_size, grids=[(16, 16)], **DEEPSEEK_OCR),
    "dots_ocr": Spec(model=dots_ocr, grids=[(6, 6), (4, 10), (2, 2)], **DOTS_OCR),
    "dots_ocr-large": Spec(
        model=lambda: dots_ocr(embed_dim=96, num_attention_heads=3, intermediate_size=80), grids=[(8, 2), (6, 10)],
        **DOTS_OCR,
    ),
}  # fmt: skip
