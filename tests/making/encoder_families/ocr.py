"""Encoders of readers of documents whose classes transformers lacks, composed of the parts that it has."""

from typing import Any

import torch
import transformers
from encoder_families.spec import MEAN, Spec
from transformers.models.clip.modeling_clip import CLIPVisionModel
from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2SamVisionEncoder

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


DEEPSEEK_OCR: dict[str, Any] = {
    "architecture": "deepseek2-ocr", "encode": deepseekocr_rows, "patch": 16, "preprocessor": MEAN,
    "written": deepseekocr_config, "saved": deepseekocr_saved,
}  # fmt: skip
SPECS = {
    "deepseekocr": Spec(model=deepseekocr, grids=[(8, 8), (10, 10)], **DEEPSEEK_OCR),
    "deepseekocr-large": Spec(model=deepseekocr_of_other_size, grids=[(16, 16)], **DEEPSEEK_OCR),
}  # fmt: skip
