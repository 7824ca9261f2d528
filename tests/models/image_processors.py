"""Projector files that have only the keys of image preprocessing, one for each kind of processor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf

HALF = [0.5, 0.5, 0.5]
CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
PINPOINTS = [112, 224, 224, 112, 224, 224, 336, 112, 112, 336]

KEYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "cogvlm": {"image_size": 112, "patch_size": 14, "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
    "deepseekocr": {"image_size": 224, "patch_size": 14, "preproc_min_tiles": 2, "preproc_max_tiles": 9,
                    "image_mean": HALF, "image_std": HALF},
    "dots_ocr": {"image_size": 0, "patch_size": 14, "projector.scale_factor": 2, "image_min_pixels": 3136,
                 "image_max_pixels": 300_000, "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
    "gemma3": {"image_size": 112, "patch_size": 14, "image_mean": HALF, "image_std": HALF},
    "gemma4v": {"image_size": 224, "patch_size": 16, "image_mean": [0.0] * 3, "image_std": [1.0] * 3},
    "glm4v": {"image_size": 336, "patch_size": 14, "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
    "glm5v": {"image_size": 336, "patch_size": 14, "image_min_pixels": 16 * 784, "image_max_pixels": 400 * 784,
              "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
    "hunyuanvl": {"image_size": 2048, "patch_size": 16, "image_min_pixels": 65_536, "image_max_pixels": 400_000,
                  "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
    "idefics3": {"image_size": 96, "patch_size": 16, "projector.scale_factor": 3, "preproc_image_size": 384,
                 "image_mean": HALF, "image_std": HALF},
    "internvl": {"image_size": 112, "patch_size": 14, "projector.scale_factor": 2, "preproc_min_tiles": 1,
                 "preproc_max_tiles": 8, "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
    "kimivl": {"image_size": 448, "patch_size": 14, "projector.scale_factor": 2, "image_max_pixels": 250_000,
               "image_mean": HALF, "image_std": HALF},
    "lfm2": {"image_size": 256, "patch_size": 16, "projector.scale_factor": 2, "image_mean": HALF, "image_std": HALF},
    "lightonocr": {"image_size": 420, "patch_size": 14, "spatial_merge_size": 2, "image_mean": CLIP_MEAN,
                   "image_std": CLIP_STD},
    "llama4": {"image_size": 84, "patch_size": 14, "projector.scale_factor": 2, "image_mean": HALF, "image_std": HALF},
    "llava-1.6": {"image_size": 112, "patch_size": 14, "image_grid_pinpoints": PINPOINTS, "image_mean": CLIP_MEAN,
                  "image_std": CLIP_STD},
    "minicpmv4_6": {"image_size": 112, "patch_size": 7, "projector.scale_factor": 4, "image_mean": HALF,
                    "image_std": HALF},
    "mlp": {"image_size": 112, "patch_size": 14, "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
    "muse-glimmer": {"image_size": 448, "patch_size": 14, "image_max_pixels": 100 * 784, "image_mean": HALF,
                     "image_std": HALF},
    "paddleocr": {"image_size": 384, "patch_size": 14, "image_min_pixels": 147_384, "image_max_pixels": 400_000,
                  "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
    "pixtral": {"image_size": 320, "patch_size": 16, "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
    "qwen2vl_merger": {"image_size": 560, "patch_size": 14, "image_mean": CLIP_MEAN, "image_std": CLIP_STD},
    "resampler": {"image_size": 112, "patch_size": 14, "image_mean": HALF, "image_std": HALF},
}  # fmt: skip
PROJECTOR_TYPES = {"llava-1.6": "mlp"}  # where the name above is not the projector type


def write_keys(path: Path, name: str, **changes: Any) -> Path:
    """Write a projector file without tensors. A change of None removes a key."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.projector_type", PROJECTOR_TYPES.get(name, name))
    for key, value in {**KEYS[name], **changes}.items():
        if isinstance(value, list):
            writer.add_array(f"clip.vision.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"clip.vision.{key}", value)
        elif value is not None:
            writer.add_float32(f"clip.vision.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
