"""LLaVA 1.5, LLaVA-NeXT and Granite Vision, whose images consist of an overview and of tiles."""

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import PIL.Image
import torch
import transformers
from encoder_families.spec import MEAN, TEXT, Grid, Rows, Spec, siglip
from made_images import SIZES, made_image
from projectors import EVERY
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

from localinfer import convert

PINPOINTS = [[24, 48], [48, 24], [48, 48], [24, 72], [72, 24]]
WHOLE_IMAGES = [SIZES.index(size) for size in ((7, 5), (40, 100), (225, 223), (700, 70))]


def llava_next(layers: int | list[int], **vision: Any) -> Any:
    is_clip = vision["model_type"] == "clip_vision_model"
    config = transformers.LlavaNextConfig(
        text_config={**TEXT, "model_type": "llama"}, vision_config=siglip(24, 4, **vision), image_token_index=3,
        vision_feature_layer=layers, image_grid_pinpoints=PINPOINTS,
        vision_feature_select_strategy="default" if is_clip else "full",
    )  # fmt: skip
    return transformers.LlavaNextForConditionalGeneration(config)


def view_rows(model: Any, pixels: torch.Tensor, _grid: Grid) -> Rows:
    """Return the rows of a view, and that of a newline."""
    found = model.model.vision_tower(pixels, output_hidden_states=True).hidden_states
    layers = model.config.vision_feature_layer
    rows = torch.cat([found[layer] for layer in (layers if isinstance(layers, list) else [layers])], -1)[0]
    rows = rows[1:] if model.config.vision_feature_select_strategy == "default" else rows
    return torch.cat([model.model.multi_modal_projector(rows), model.model.image_newline[None]])


def whole_images(model: Any) -> dict[str, Any]:
    """Return the numbers of rows of some made images, and every third row."""
    processor = LlavaNextImageProcessorPil(
        size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}, image_grid_pinpoints=PINPOINTS, **MEAN
    )
    arrays: dict[str, Any] = {}
    for number in WHOLE_IMAGES:
        found = processor(PIL.Image.fromarray(made_image(number)), return_tensors="pt")
        rows = model.model.get_image_features(found["pixel_values"], found["image_sizes"]).pooler_output[0]
        arrays |= {f"image_length_{number}": len(rows), f"image_rows_{number}": rows.numpy()[::EVERY]}
    return arrays


def converted(model: Any) -> bytes:
    """Return the file that localinfer makes of the model, which llama.cpp's converter does not know."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        Path(folder, "preprocessor_config.json").write_text(json.dumps(MEAN))
        return convert(folder, Path(folder, "mmproj.gguf"), "F32", mmproj=True).read_bytes()


CLIP = {"model_type": "clip_vision_model", "hidden_act": "quick_gelu", "num_hidden_layers": 3}
SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False, "num_hidden_layers": 4}
NEXT: dict[str, Any] = {
    "encode": view_rows, "grids": [(6, 6)], "patch": 4, "preprocessor": MEAN, "file": converted, "more": whole_images,
}  # fmt: skip
SPECS = {
    "llava-next": Spec(architecture="llama", model=partial(llava_next, -2, **CLIP), **NEXT),
    "granite-vision": Spec(architecture="granite", model=partial(llava_next, [-4, -2, -1], **SIGLIP), **NEXT),
}
